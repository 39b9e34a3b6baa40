"""The deployment under load, all real processes: servers, a manager, an application, workers over the network."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.servers import die_with_the_parent
from tests.soak import fleet, observed
from tests.soak.kinds import SERVED, settings_text
from tests.soak.measure import children_of
from tests.torture.places import Place

KEY: Final = "the-key-of-the-soak"
_START_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 60.0
SERVERS: Final = ("server-1", "server-2")
MORTAL: Final = ("stream-2", "rest-2")
"""Workers that are killed and restarted. All other processes run from start to end, and are judged."""
WORKERS: Final = (*SERVED, *MORTAL)


@dataclass(slots=True)
class Deployment:
    """The processes of one run."""

    place: Place
    folder: Path
    keep_hours: float
    longest_seconds: float
    """How long slow jobs run, and the longest delay of a delayed job."""
    workers: tuple[str, ...] = WORKERS
    leak: dict[str, str] = field(default_factory=dict)
    """For tests of the judge: what each process leaks, by process name."""
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    ports: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The store."""
        return self.place.url(self.folder)

    def start(self) -> None:
        """Start everything, and wait until the servers are ready."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        (self.folder / "everwork.toml").write_text(settings_text(self.keep_hours), "utf-8")
        for name in SERVERS:
            self.start_server(name)
        for name in SERVERS:
            self.await_server(name)
        for name in self.workers:
            self.start_worker(name)

    @property
    def lasting(self) -> list[str]:
        """The processes that run from start to end."""
        return [name for name in (*SERVERS, *self.workers) if name not in MORTAL]

    @property
    def served(self) -> list[str]:
        """The types that have a worker."""
        return [type for worker, types in SERVED.items() if worker in self.workers for type in types]

    def start_server(self, name: str) -> None:
        """Start a server, on the ports that it had before."""
        ports = self.ports.get(name, {"grpc_port": 0, "http_port": 0})
        command = [
            "tests.soak.observed", "serve", "--engine", self.url, "--json", "--grpc-port", str(ports["grpc_port"]),
            "--http-port", str(ports["http_port"]),
        ]  # fmt: skip
        self._out(name).unlink(missing_ok=True)
        self._start(name, command)

    def await_server(self, name: str) -> None:
        """Wait until a server is ready: it then prints a line with its ports."""
        out, process = self._out(name), self.processes[name]
        until = time.monotonic() + _START_SECONDS_MAX
        while not (line := out.read_text()).endswith("\n"):
            alive = process.poll() is None and time.monotonic() < until
            assert alive, f"{name} did not start: {self.log(name)}"
            time.sleep(0.02)
        facts: dict[str, Any] = json.loads(line.partition("\n")[0])
        self.ports[name] = {one: facts[one] for one in ("grpc_port", "http_port")}

    def start_worker(self, name: str) -> None:
        """Start one of the programs that run jobs."""
        kind, _, rest = name.partition("-")
        match kind:
            case "manager" | "app":
                self._start(name, ["tests.soak.observed", "worker", f"tests.soak.fleet:{kind}"])
            case _:
                self._start(name, ["tests.soak.fleet", kind, rest])

    def grpc(self, name: str) -> str:
        """The gRPC address of a server."""
        return f"grpc://127.0.0.1:{self.ports[name]['grpc_port']}"

    def http(self, name: str) -> str:
        """The URL of a server's REST API and dashboard."""
        return f"http://127.0.0.1:{self.ports[name]['http_port']}"

    def log(self, name: str) -> str:
        """The log of a process so far."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def _out(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.out"

    def ended(self) -> dict[str, int]:
        """Processes that ended unexpectedly, with their exit codes."""
        codes = {name: process.poll() for name, process in self.processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def managed(self) -> list[int]:
        """The processes of the manager that run jobs."""
        found = children_of(self.processes["manager"].pid) if "manager" in self.processes else []
        return [pid for pid in found if b"resource_tracker" not in _command(pid)]

    def kill(self, name: str) -> None:
        """SIGKILL a worker, and restart it."""
        self.processes[name].kill()
        self.processes[name].wait()
        self.start_worker(name)

    async def restart_server(self, name: str) -> None:
        """Stop a server gracefully, and restart it."""
        self.processes[name].send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.processes[name].wait, _STOP_SECONDS_MAX)
        # Not in a thread: the thread's child processes would end with it.
        self.start_server(name)
        await asyncio.to_thread(self.await_server, name)

    def kill_managed(self, rng: random.Random) -> bool:
        """SIGKILL a process of the manager; returns whether there was one."""
        there = self.managed()
        if there:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(there), signal.SIGKILL)
        return bool(there)

    def stop(self) -> dict[str, int]:
        """Stop everything, workers first; returns the exit codes, -9 for a process that had to be killed."""
        codes = {}
        for names in ([name for name in self.processes if name not in SERVERS], SERVERS):
            there = [name for name in names if name in self.processes]
            for name in there:
                self.processes[name].send_signal(signal.SIGTERM)
            until = time.monotonic() + _STOP_SECONDS_MAX
            for name in there:
                process = self.processes.pop(name)
                try:
                    codes[name] = process.wait(max(until - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    process.kill()
                    codes[name] = process.wait()
        return codes

    def _start(self, name: str, module_and_arguments: list[str]) -> subprocess.Popen[str]:
        environment = {one: value for one, value in os.environ.items() if not one.startswith(("EVERWORK_", "GRPC_"))}
        own = {
            "EVERWORK_API_KEY": KEY, "EVERWORK_LOG_FORMAT": "json", fleet.STORE: self.url,
            fleet.KEEP_HOURS: str(self.keep_hours), fleet.SLOW_SECONDS: str(self.longest_seconds),
            observed.FOLDER: str(self.folder), observed.LEAK: self.leak.get(name, ""), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        if len(self.ports) == len(SERVERS):
            own |= {fleet.GRPC: self.grpc(SERVERS[0]), fleet.HTTP: self.http(SERVERS[-1])}
        with (self.folder / "logs" / f"{name}.log").open("a") as log, self._out(name).open("a") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", *module_and_arguments], stdout=out, stderr=log, stdin=subprocess.DEVNULL,
                text=True, cwd=self.folder, env=environment | own | _path(),
                preexec_fn=die_with_the_parent,  # noqa: PLW1509 - only a libc call, which takes no lock
            )  # fmt: skip
        self.processes[name] = process
        return process


def _path() -> dict[str, str]:
    """The environment in which Python finds the code of this checkout, from any folder."""
    root = Path(__file__).resolve().parents[2]
    return {"PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")])}


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
