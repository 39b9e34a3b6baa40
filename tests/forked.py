"""Programs of ours as real processes, without the time that an interpreter needs to import them.

A template process imports everything once and forks for each program: it has its own process group, default signal
handling, its own environment, folder and standard streams, and ends as any interpreter does; only a program of
`run_forked` does not take its modules apart in the end. What depends on a fresh interpreter (imports, `PYTHON*`
variables) is started with `subprocess` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, Final, NamedTuple, Never

from tests.children import GuardedPopen, kill_group

ROOT: Final = Path(__file__).resolve().parents[1]
PRELOADED: Final = (
    *("everwork.cli", "everwork.app", "everwork.manager", "everwork.service", "everwork.engines"),
    *("everwork.server", "everwork.client", "everwork.spool"),
)
PRELOADED_OF_OTHERS: Final = ("httpx", "psycopg", "pytest")
"""What test programs import in addition to the package; the scenarios of the mutants do so nearly a hundred times."""
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
        program = BriefPopen(
            [module, *arguments], stdin=streams[0], stdout=streams[1], stderr=streams[2], cwd=cwd, env=env
        )
        try:
            program.wait(timeout)
        except BaseException as error:
            kill_group(program)
            program.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"{module} {arguments} did not end within {timeout:g} s") from None
            raise
        return Finished(program.returncode, *(_content(stream) for stream in streams[1:]))
    finally:
        for stream in streams:
            os.close(stream)


class ForkedPopen(GuardedPopen):
    """`python -m module arguments`, as `subprocess.Popen` would start it, but forked from the template.

    It starts and waits in another way, everything else is inherited: hence the names that begin with an underscore.
    """

    _answers: socket.socket | None = None
    _is_brief = False

    def _execute_child(self, args: list[str], *options: Any) -> None:
        pipes = options[9:15]
        streams = [number if theirs == -1 else theirs for number, theirs in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {
            "module": args[0],
            "argv": args[1:],
            "cwd": str(options[4] or Path.cwd()),
            "env": dict(os.environ if options[5] is None else options[5]),
            "is_session": options[20],
            "is_brief": self._is_brief,
        }
        try:
            self._answers = _template().start(request, streams)
            self.pid = int(_receive(self._answers))
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            assert self._answers is not None
            self._answers.settimeout(timeout)
            try:
                self.returncode = os.waitstatus_to_exitcode(int(_receive(self._answers)))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._answers.close()
        return self.returncode

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


class BriefPopen(ForkedPopen):
    """A program that leaves its memory to the system at the end: otherwise that takes longer than most commands."""

    _is_brief = True


class Template:
    """The client's side of the template process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.forked", str(theirs.fileno())]
        self._socket = ours
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(self, request: dict[str, Any], streams: list[int]) -> socket.socket:
        """Start a program; the socket tells its process id, and when it has ended its wait status."""
        text = json.dumps(request).encode()
        assert len(text) < REQUEST_BYTES_MAX
        self._socket.settimeout(PRELOAD_SECONDS_MAX)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._socket, [len(text).to_bytes(8, "big")], [*streams, theirs.fileno()])
        for start in range(0, len(text), 60_000):
            self._socket.send(text[start : start + 60_000])
        ours.settimeout(PRELOAD_SECONDS_MAX)
        return ours

    def close(self) -> None:
        """End the template."""
        self._socket.close()
        self._process.wait()


_templates: Final[dict[int, Template]] = {}


def _template() -> Template:
    """This process's template; whoever was forked from a test has its own."""
    if os.getpid() not in _templates:
        _templates.clear()
        _templates[os.getpid()] = template = Template()
        atexit.register(template.close)
    return _templates[os.getpid()]


def _receive(answers: socket.socket) -> bytes:
    answer = answers.recv(100)
    assert answer, "the template process has died"
    return answer


def _content(stream: int) -> bytes:
    os.lseek(stream, 0, os.SEEK_SET)
    with open(stream, "rb", closefd=False) as file:
        return file.read()


# The template process ---------------------------------------------------------------------------


def serve(requests: socket.socket) -> None:
    """Fork for each request until the client goes away; in the child, run the program instead."""
    waiting = selectors.DefaultSelector()
    waiting.register(requests, selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready, _ in waiting.select():
            if ready.fileobj is not requests:
                waiting.unregister(ready.fd)
                os.close(ready.fd)
                pid, answers = running.pop(ready.fd)
                _tell(answers, os.waitpid(pid, 0)[1])
                answers.close()
                continue
            head, descriptors, *_ = socket.recv_fds(requests, 8, 4)
            if not head:
                return
            request = _read(requests, int.from_bytes(head, "big"))
            *streams, last = descriptors
            answers = socket.socket(fileno=last)
            pid = os.fork()
            if pid == 0:
                waiting.close()
                requests.close()
                for pidfd, (_, others) in running.items():
                    os.close(pidfd)
                    others.close()
                become(json.loads(request), streams, answers)
                return
            for stream in streams:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, answers
            waiting.register(pidfd, selectors.EVENT_READ)


def _tell(answers: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # Nobody waits for it any more.
        answers.send(str(number).encode())


def _read(requests: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        text += requests.recv(60_000)
    return text


def become(request: dict[str, Any], streams: list[int], answers: socket.socket) -> None:
    """Be the program, as if an interpreter had been started for it. Whoever knows it can kill its whole group."""
    if request["is_session"]:
        os.setsid()
    else:
        os.setpgid(0, 0)
    with answers:
        _tell(answers, os.getpid())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = [request["module"], *request["argv"]]
    code: Any = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
        if not request["is_brief"] or not isinstance(code, int):
            raise
    if request["is_brief"]:
        leave(code)


def leave(code: int) -> Never:
    """End as an interpreter does, but without a walk over everything that was imported, which copies all of it."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def preload() -> None:
    """Import what programs need, and nothing that starts a thread."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # As `everwork serve` says before it imports gRPC.
    for name in PRELOADED_OF_OTHERS:
        import_module(name)
    for name in PRELOADED:
        package = import_module(name)
        for module in walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.freeze()  # Else every program that ends walks over all of it.


if __name__ == "__main__":
    preload()
    serve(socket.socket(fileno=int(sys.argv[1])))
