"""The peers' harness as a program: one round of it, and the rows that it writes."""

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
SERVERS = {"postgres": "initdb", "redis": "redis-server"}
"""What has to be there for an engine to be measured."""


@dataclass(frozen=True, slots=True)
class Harness:
    """Where the harness is, where it may work, and how much it measures."""

    folder: Path
    home: Path
    rows: Path
    jobs: int | None = None

    def measure(self, names: Sequence[str]) -> None:
        """Measure each of these once, in this order; the rows are appended to the file."""
        amount = [] if self.jobs is None else ["--n", str(self.jobs)]
        command = [sys.executable, str(self.folder / "run.py"), *names, "--out", str(self.rows), *amount]
        # From the root of the project: our adapters install it from there.
        subprocess.run(command, check=True, cwd=ROOT, env=self._environment(), stdout=sys.stderr)

    def read(self) -> list[dict[str, Any]]:
        """Every row so far."""
        if not self.rows.exists():
            return []
        return [json.loads(line) for line in self.rows.read_text("utf-8").splitlines()]

    def versions(self, engines: Sequence[str]) -> dict[str, str]:
        """The servers that the harness finds."""
        return {engine: _version(engine) for engine in engines if engine in SERVERS}

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": path(), "BENCH_HOME": str(self.home), "BENCH_ADAPTERS": str(ADAPTERS)}


def missing(engines: Sequence[str]) -> str | None:
    """What the harness will not find, in words; None if all is there."""
    for engine in engines:
        program = SERVERS.get(engine)
        if program is not None and shutil.which(program, path=path()) is None:
            return f"{program} is not on the PATH: install the server of {engine} (Debian: postgresql, redis-server)"
    return None


def path() -> str:
    """Where programs are looked for. A redis-server that came with a wheel serves where the system has none."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


def _version(engine: str) -> str:
    found = shutil.which(SERVERS[engine], path=path())
    if found is None:
        return "unknown"
    told = subprocess.run([found, "--version"], check=True, capture_output=True, text=True).stdout.split()
    return told[2].removeprefix("v=")  # After "initdb (PostgreSQL)", and after "Redis server".
