"""Starts programs quickly: one process imports what they need and forks for each. It is their parent.

`tests.forked` runs one program to its end; these live side by side, and are killed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from tests.torture.nemesis import ROOT
from tests.torture.process import die_with_the_controller

_PRELOADED: Final = ("everwork.spool.outbox", "tests.torture.offline.producer", "tests.torture.offline.worker")
SERVER: Final = "tests.torture.offline.server"


class Nursery:
    """The client's side."""

    def __init__(self, *more: str) -> None:
        command = [sys.executable, "-m", "tests.torture.offline.nursery", *_PRELOADED, *more]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def launch(self, module: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> Launched:
        """Start `python -m module arguments`; what it prints is appended to the log."""
        asked = {"module": module, "argv": arguments, "env": {**os.environ, **environment}, "log": str(log)}
        return Launched(self, int(self.ask("launch", asked)))

    def ask(self, what: str, value: object) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, value]).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End; programs that still run are killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


class Launched:
    """A program that was started."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._status: int | None = None

    def poll(self) -> int | None:
        """How it has ended, as `Popen` says it; None while it runs."""
        if self._status is None:
            self._status = self._nursery.ask("poll", self.pid)
        return self._status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            self._nursery.ask("signal", [self.pid, int(number)])

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.send_signal(signal.SIGKILL)
        if self._status is None:
            self._status = self._nursery.ask("wait", self.pid)


# The process ----------------------------------------------------------------------------------------


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until nobody asks any more; in a new process, run its program instead."""
    for line in questions:
        what, value = json.loads(line)
        answer: int | None = None
        match what:
            case "launch":
                answer = os.fork()
                if answer == 0:
                    become(value)
                    return
            case "signal":
                os.kill(*value)
            case _:
                pid, status = os.waitpid(value, os.WNOHANG if what == "poll" else 0)
                answer = os.waitstatus_to_exitcode(status) if pid else None
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def become(asked: dict[str, Any]) -> None:
    """Be the program, as if an interpreter had been started for it."""
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, log, log)):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(asked["env"])
    random.seed()
    sys.argv = [asked["module"], *asked["argv"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    die_with_the_controller()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # As `everwork serve` says before it imports gRPC.
    for name in sys.argv[1:]:
        import_module(name)
    gc.freeze()
    serve(sys.stdin.buffer, sys.stdout.buffer)
