"""Runs a server and workers of an image as an orchestrator would: entry point, user, probes, signals."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
LOOK_EVERY_SECONDS: Final = 0.2
TYPE: Final = "email-send"
"""A job type of the sample workers."""


class TrialFailed(Exception):
    """The image does not work as expected."""


def require(holds: bool, problem: str) -> None:
    """Fail the trial unless a condition is true."""
    if not holds:
        raise TrialFailed(problem)


class ImageRun:
    """One trial of an image. Everything listens on a loopback address: a chroot shares the network of its host."""

    def __init__(self, config: dict[str, Any], data: Path, workers: Path, say: Callable[[str], None]) -> None:
        self.config = config
        self.data = data
        self.workers = workers
        self.say = say
        self.key = secrets.token_hex(16)
        self.grpc_port, self.http_port = _free_ports(2)

    @property
    def options(self) -> list[str]:
        """The options of containers: volume, program and settings."""
        settings = {
            "EVERWORK_HOST": "127.0.0.1",
            "EVERWORK_GRPC_PORT": self.grpc_port,
            "EVERWORK_HTTP_PORT": self.http_port,
            "EVERWORK_API_KEY": self.key,
            # In a chroot, the first process does not have PID 1.
            "TINI_SUBREAPER": "1",
        }
        return [
            *("--isolation", "chroot", "--volume", f"{self.data}:/var/lib/everwork"),
            *("--volume", f"{self.workers}:/app:ro"),
            *(word for name, value in settings.items() for word in ("--env", f"{name}={value}")),
        ]

    def run(self, server: Container, workers: Container) -> None:
        """Start both, let them run a job, stop both."""
        user = server.output("sh", "-c", "id -u; everwork version").split("\n")
        require(user[0] == self.config["User"].partition(":")[0], f"it runs as user {user[0]}")
        self.say(f"runs as user {user[0]}: {user[1]}")
        probe = self.config["Healthcheck"]["Test"][1:]
        require(server.code(*probe) == 1, "the health check passes without a server")

        server.start(self.config["Entrypoint"] + self.config["Cmd"])
        self.say(f"the server: {self._until_healthy(server, probe)}")
        command = ["worker", "shop:manager", "--app-dir", "/app", "--log-format", "json"]
        workers.start(self.config["Entrypoint"] + command)
        self.say(f"the workers: {self._until_healthy(workers, ['everwork', 'probe', '--manager', 'shop'])}")

        self.say(f"a job: {self._job_done()}")
        for name, container in (("workers", workers), ("server", server)):
            self.say(f"the {name} stopped {container.stop()}")
        require(server.code(*probe) == 1, "the health check passes although the server has stopped")

    def _until_healthy(self, container: Container, probe: Sequence[str]) -> str:
        """Probe as an orchestrator does, until the container is healthy."""
        began = time.monotonic()
        while (code := container.code(*probe)) != 0:
            require(code == 1, f"{' '.join(probe)}: exit code {code}")
            require(container.is_running(), f"it has exited:\n{container.log()}")
            require(time.monotonic() - began < START_SECONDS_MAX, f"never healthy:\n{container.log()}")
            time.sleep(LOOK_EVERY_SECONDS)
        return f"healthy after {time.monotonic() - began:.1f} s ({container.output(*probe)})"

    def _job_done(self) -> str:
        """Create a job over REST and wait until a worker has completed it."""
        began = time.monotonic()
        created = self._call("POST", "/api/v1/jobs", {"type": TYPE, "variables": {"to": "ada@example.org"}})
        while (job := self._call("GET", f"/api/v1/jobs/{created['key']}"))["state"] != "completed":
            require(time.monotonic() - began < START_SECONDS_MAX, f"no worker completed the job: {job}")
            time.sleep(LOOK_EVERY_SECONDS)
        return f"completed after {time.monotonic() - began:.1f} s with {json.dumps(job['result'])}"

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        request = Request(
            f"http://127.0.0.1:{self.http_port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"X-API-Key": self.key, "Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=10) as response:  # noqa: S310
            found: dict[str, Any] = json.load(response)
            return found


class Container:
    """A working container of buildah, and the program that runs in it."""

    def __init__(self, command: Callable[..., list[str]], name: str, trial: ImageRun) -> None:
        self._command = command
        self.name = name
        self._trial = trial
        self._process: subprocess.Popen[bytes] | None = None
        self._log = trial.data.parent / f"{name}-{os.getpid()}.log"

    def start(self, words: Sequence[str]) -> None:
        """Run a program until it is stopped."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                self._words(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def code(self, *words: str) -> int:
        """The exit code of another program run in the container."""
        return self._besides(words).returncode

    def output(self, *words: str) -> str:
        """The output of another program run in the container."""
        done = self._besides(words)
        require(done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def is_running(self) -> bool:
        """Whether the program is running."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> str:
        """Send SIGTERM to the first process, as orchestrators do; it must exit with code 0."""
        began = time.monotonic()
        init = next((pid for pid in self._descendants() if _name(pid) == "tini"), None)
        if init is None or self._process is None:
            raise TrialFailed(f"tini is not its first process:\n{self.log()}")
        os.kill(init, signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise TrialFailed(f"not stopped {STOP_SECONDS_MAX:g} s after SIGTERM:\n{self.log()}") from None
        require(code == 0, f"exit code {code} after SIGTERM:\n{self.log()}")
        return f"with exit code 0 in {time.monotonic() - began:.1f} s"

    def end(self) -> None:
        """Kill processes that are still running after a failure."""
        for pid in self._descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._log.unlink(missing_ok=True)

    def log(self) -> str:
        """The last lines of the program's output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-25:]) if self._log.exists() else ""

    def _words(self, words: Sequence[str]) -> list[str]:
        return self._command("run", *self._trial.options, self.name, "--", *words)

    def _besides(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own words
            self._words(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )

    def _descendants(self) -> list[int]:
        """The processes below ours, parents first."""
        found = [self._process.pid] if self.is_running() and self._process else []
        for pid in found:
            with suppress(OSError):
                tasks = Path(f"/proc/{pid}/task").iterdir()
                found += [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return found[1:]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
