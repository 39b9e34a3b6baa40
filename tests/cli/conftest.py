"""The real command, and the file that it works on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from tests.forked import ForkedPopen, run_forked

COMMAND = str(Path(sys.executable).parent / "everwork")
DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        assert (self.code, self.err) == (0, ""), self
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on standard error; nothing else was said."""
        assert self.out == "", self
        [line] = self.err.splitlines()
        assert line.startswith("everwork: "), self
        return line.removeprefix("everwork: ")


@dataclass(frozen=True)
class Cli:
    """Runs commands in a directory of their own."""

    folder: Path

    @property
    def file(self) -> Path:
        """The default store."""
        return self.folder / "everwork.db"

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Answer:
        """Run a command to its end. Only settings in its environment: then it need not be a fresh interpreter."""
        env = self.environment(**environment)
        if all(name.startswith("EVERWORK_") for name in environment):
            forked = run_forked(
                "everwork", list(arguments), cwd=self.folder, env=env, stdin=stdin, timeout=DEADLINE_SECONDS
            )
            return Answer(forked.returncode, forked.stdout.decode(), forked.stderr.decode())
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=env,
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that goes on until it is stopped."""
        return ForkedPopen(
            ["everwork", *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def environment(self, **more: str) -> dict[str, str]:
        """The test's environment without settings of whoever runs it."""
        return {name: value for name, value in os.environ.items() if not name.startswith("EVERWORK_")} | more


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command, in an empty directory."""
    return Cli(tmp_path)


@pytest.fixture
async def engine(cli: Cli) -> AsyncIterator[Engine]:
    """The test's own engine on the command's default store."""
    opened = open_engine(f"sqlite:///{cli.file}")
    await opened.open()
    yield opened
    await opened.close()
