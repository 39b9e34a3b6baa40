"""Builds the published packages, checks them, and runs `everwork up` from the wheel in an empty environment.

    python -m tools.dist [FOLDER]

Leaves the wheel and the source distribution in `dist/`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "dist"
SECONDS_MAX: Final = 60


def main(folder: Path) -> None:
    """Stops with the output of the step that failed."""
    wheel, source = built(folder)
    _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source))
    with tempfile.TemporaryDirectory() as scratch:
        python = installed(wheel, Path(scratch))
        answer = served(python, Path(scratch))
    sys.stdout.write(
        f"{wheel.name} and {source.name} are in {folder}; `everwork up` from the wheel answers: {answer}\n"
    )


def built(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the source distribution; earlier contents of the folder are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def installed(wheel: Path, scratch: Path) -> Path:
    """The Python of a new environment that has only the wheel and its dependencies."""
    _run(sys.executable, "-m", "venv", str(scratch / "venv"))
    python = scratch / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    return python


def served(python: Path, scratch: Path) -> str:
    """The response of `everwork up` to `/healthz`; the server is stopped afterwards."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("EVERWORK_", "PYTHON"))}
    command = [str(python.with_name("everwork")), "up", "--json", "--grpc-port", "0", "--http-port", "0"]
    with subprocess.Popen(command, cwd=scratch, env=environment, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own program
        try:
            port = json.loads(next(iter(process.stdout or ())))["http_port"]
            url = f"http://127.0.0.1:{port}/healthz"
            with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
                return str(answer.read().decode())
        finally:
            process.terminate()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER)
