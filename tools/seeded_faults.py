"""Seeded faults: one-line changes to the source, each of which the test suite must detect.

    python -m tools.seeded_faults [--list] [--only NAME ...] [--everything]

Each fault in seeded_faults.toml is applied to a copy of the source, and the tests of the affected packages run until
the first one fails. `--everything` runs them on every engine and in every configuration, as `make test-all` does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCE: Final = "src/everwork"
COPIED: Final = ("src", "tests", "tools", "proto", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
SECONDS_MAX: Final = 900


class Fault(NamedTuple):
    """A fault: the text to replace, its replacement, and the tests that should detect it."""

    file: str
    old: str
    new: str
    tests: str


FAULTS: Final = {
    name: Fault(**fields) for name, fields in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}


def noticed(fault: Fault, *, everything: bool) -> tuple[str, float]:
    """The first test that fails because of a fault (empty if none does), and the seconds it took."""
    with tempfile.TemporaryDirectory(prefix="everwork-fault-") as folder:
        copy = Path(folder)
        for name in COPIED:
            _copy(ROOT / name, copy / name)
        target = copy / SOURCE / fault.file
        text = target.read_text()
        if text.count(fault.old) != 1:
            raise SystemExit(f"{fault.file}: {fault.old!r} occurs {text.count(fault.old)} times")
        target.write_text(text.replace(fault.old, fault.new))
        return _first_failure(copy, fault, everything=everything)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _first_failure(copy: Path, fault: Fault, *, everything: bool) -> tuple[str, float]:
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "EVERWORK_TEST_EVERYTHING": "1" if everything else ""}
    if fault.file.startswith("engines/"):
        environment["EVERWORK_TEST_ENGINES"] = Path(fault.file).parts[1]
    options = ["-x", "-q", "-n", "2", "--no-header", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *fault.tests.split()]
    began = time.monotonic()
    done = subprocess.run(  # noqa: S603 - our own tests
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    lines.sort(key=lambda line: line.startswith("ERROR"))  # Tests in progress when a run ends may fail.
    if done.returncode not in (0, 1, 2) or (done.returncode and not lines):
        raise SystemExit(done.stdout[-3_000:] + done.stderr[-1_000:])
    return (lines[0].partition(" - ")[0] if lines else ""), time.monotonic() - began


def main() -> None:
    """Try the faults and list which test detected each; exit code 1 if one was not detected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--everything", action="store_true", help="on every engine and in every configuration")
    options = parser.parse_args()
    missed = []
    for name in options.only:
        fault = FAULTS[name]
        if options.list:
            sys.stdout.write(f"{name}: {fault.file}: {fault.old.strip()} -> {fault.new.strip() or '(nothing)'}\n")
            continue
        found, seconds = noticed(fault, everything=options.everything)
        missed += [] if found else [name]
        sys.stdout.write(f"{name} ({fault.file}): {found or 'NOT DETECTED'}, {seconds:.0f} s\n")
        sys.stdout.flush()
    if missed:
        raise SystemExit(f"not detected: {', '.join(missed)}")


if __name__ == "__main__":
    main()
