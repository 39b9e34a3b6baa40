"""Runs the harness of the peers: one round, and the rows that it writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = Path(__file__).with_name("adapters")
OWN_ENVIRONMENT = "everwork"
"""The environment that our adapters name in VENV."""
SERVERS = {"postgres": "initdb", "redis": "redis-server"}
"""The programs needed to measure an engine."""


@dataclass(frozen=True, slots=True)
class Harness:
    """The folder of the harness, its working folder, and how much it measures."""

    folder: Path
    home: Path
    rows: Path
    jobs: int | None = None

    def measure(self, names: Sequence[str]) -> None:
        """Measure each of these once, in this order; the rows are appended to the file."""
        self._install_from_here()
        amount = [] if self.jobs is None else ["--n", str(self.jobs)]
        command = [sys.executable, str(self.folder / "run.py"), *names, "--out", str(self.rows), *amount]
        # Runs in the root of the project, because our adapters install it from there.
        subprocess.run(command, check=True, cwd=ROOT, env=self._environment(), stdout=sys.stderr)

    def read(self) -> list[dict[str, Any]]:
        """Every row so far."""
        if not self.rows.exists():
            return []
        return [json.loads(line) for line in self.rows.read_text("utf-8").splitlines()]

    def versions(self, engines: Sequence[str]) -> dict[str, str]:
        """The servers that the harness finds."""
        return {engine: _version(engine) for engine in engines if engine in SERVERS}

    def _install_from_here(self) -> None:
        """Have the harness install Everwork again if its environment was made from another checkout.

        The harness installs a list of packages once; that list does not name the checkout.
        """
        environment = self.home / "venv" / OWN_ENVIRONMENT
        source = environment / "everwork-source"
        if not source.is_file() or source.read_text("utf-8") != str(ROOT):
            for installed in environment.glob(".bench-*"):
                installed.unlink()
            environment.mkdir(parents=True, exist_ok=True)
            source.write_text(str(ROOT), "utf-8")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": path(), "BENCH_HOME": str(self.home), "BENCH_ADAPTERS": str(ADAPTERS)}


def missing(engines: Sequence[str]) -> str | None:
    """What the harness lacks, as text; None if nothing is missing."""
    for engine in engines:
        program = SERVERS.get(engine)
        if program is not None and shutil.which(program, path=path()) is None:
            return f"{program} is not on the PATH: install the server of {engine} (Debian: postgresql, redis-server)"
    return None


def path() -> str:
    """The PATH of the harness; with the redis-server of a wheel, if the system has none."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def _version(engine: str) -> str:
    found = shutil.which(SERVERS[engine], path=path())
    if found is None:
        return "unknown"
    told = subprocess.run([found, "--version"], check=True, capture_output=True, text=True).stdout.split()
    return told[2].removeprefix("v=")  # After "initdb (PostgreSQL)", and after "Redis server".
