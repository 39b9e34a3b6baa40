"""Programs of ours as real processes, without the time that an interpreter needs to import them.

A template process imports everything once and forks for each program: it has its own process group, default signal
handling, its own environment, folder and standard streams, and ends as any interpreter does. What depends on a fresh
interpreter (imports, `PYTHON*` variables) is started with `subprocess` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PRELOADED: Final = ("everwork.cli", "everwork.app", "everwork.manager", "everwork.service", "everwork.engines")
REQUEST_BYTES_MAX: Final = 1_000_000
PRELOAD_SECONDS_MAX: Final = 100


class Finished(NamedTuple):
    """How a program ended, and what it wrote."""

    returncode: int
    stdout: bytes
    stderr: bytes


def run_forked(
    module: str, arguments: list[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None, stdin: bytes = b"",
    timeout: float = 60,
) -> Finished:  # fmt: skip
    """`python -m module arguments`, to its end; after the timeout its whole group is killed."""
    streams = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.write(streams[0], stdin)
        os.lseek(streams[0], 0, os.SEEK_SET)
        request = {
            "module": module,
            "argv": arguments,
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
        }
        status = _template().run(request, streams, timeout)
        returncode = os.waitstatus_to_exitcode(status)
        return Finished(returncode, *(_content(stream) for stream in streams[1:]))
    finally:
        for stream in streams:
            os.close(stream)


class Template:
    """The client's side of the template process; one program at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        self.pid = os.getpid()
        self._socket = ours
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def run(self, request: dict[str, Any], streams: list[int], timeout: float) -> int:
        """The wait status of one program."""
        text = json.dumps(request).encode()
        assert len(text) < REQUEST_BYTES_MAX
        self._socket.settimeout(PRELOAD_SECONDS_MAX)
        socket.send_fds(self._socket, [len(text).to_bytes(8, "big")], streams)
        self._send(text)
        pid = int(self._receive())
        self._socket.settimeout(timeout)
        try:
            return int(self._receive())
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self._socket.settimeout(None)
            self._receive()
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{request['module']} {request['argv']} did not end within {timeout:g} s") from None
            raise

    def close(self) -> None:
        """End the template; programs that run have ended."""
        self._socket.close()
        self._process.wait()

    def _send(self, text: bytes) -> None:
        for start in range(0, len(text), 60_000):
            self._socket.send(text[start : start + 60_000])

    def _receive(self) -> bytes:
        answer = self._socket.recv(100)
        assert answer, "the template process has died"
        return answer


_templates: Final[dict[int, Template]] = {}


def _template() -> Template:
    """This process's template; whoever was forked from a test has its own."""
    if os.getpid() not in _templates:
        _templates.clear()
        _templates[os.getpid()] = template = Template()
        atexit.register(template.close)
    return _templates[os.getpid()]


def _content(stream: int) -> bytes:
    os.lseek(stream, 0, os.SEEK_SET)
    with open(stream, "rb", closefd=False) as file:
        return file.read()


# The template process ---------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork for each request until the client goes away; in the child, run the program instead."""
    while True:
        head, streams, *_ = socket.recv_fds(requests, 8, 3)
        if not head:
            return
        request = _read(requests, int.from_bytes(head, "big"))
        pid = os.fork()
        if pid == 0:
            requests.close()
            become(json.loads(request), streams)
            return
        with contextlib.suppress(OSError):  # Whoever comes first: a killer must not find the group of another.
            os.setpgid(pid, pid)
        for stream in streams:
            os.close(stream)
        requests.send(str(pid).encode())
        requests.send(str(os.waitpid(pid, 0)[1]).encode())


def _read(requests: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        text += requests.recv(60_000)
    return text


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Be the program, as if an interpreter had been started for it."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["module"], *request["argv"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def preload() -> None:
    """Import what programs need, and nothing that starts a thread."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # As `everwork serve` says before it imports gRPC.
    for name in PRELOADED:
        package = import_module(name)
        for module in walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.freeze()  # Else every program that ends walks over all of it.


if __name__ == "__main__":
    preload()
    serve(socket.socket(fileno=int(sys.argv[1])))
