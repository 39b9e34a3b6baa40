"""The processes of a fleet: each is restarted when it ends."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.servers import LOOPBACK, free_port
from tests.torture import clocks, faults
from tests.torture.fleet.parts import ADMIN
from tests.torture.fleet.server import PORTS
from tests.torture.history import host_clock_ms
from tests.torture.offline.nursery import Launched, Nursery
from tests.torture.process import Life

_FAULT_SHARE: Final = 0.3
_FAULT_PASSAGES_MAX: Final = 400
_LISTEN_SECONDS_MAX: Final = 30.0
PRELOADED: Final = (
    "tests.torture.manager",
    *(f"tests.torture.fleet.{name}" for name in ("producer", "server", "streamer", "supervisor", "worker", "zeebe")),
    # Modules that the programs import on demand.
    *("everwork.cli.serving", "everwork.client.remote", "everwork.client.offline", "everwork.client.remote_stream"),
    *("everwork.client.stream_source", "everwork.spool.outbox", "tests.torture.fleet.rest_jobs"),
    *("everwork.engines.sqlite.engine", "everwork.engines.postgres.engine", "everwork.engines.redis.engine"),
)


@dataclass(slots=True, eq=False)
class Member:
    """A process of the fleet, and the fault that it is exposed to."""

    role: str
    module: str
    life: Life
    environment: dict[str, str] = field(default_factory=dict)
    ports: tuple[int, int] = (0, 0)
    """Its ports, if it is a server."""
    is_near: bool = True
    """Whether its network is free of faults."""
    process: Launched | None = None
    fault: str = ""
    resume_at: float | None = None
    stopped_at_ms: int = 0
    leaves_by: float | None = None
    born_at: float = 0.0

    @property
    def name(self) -> str:
        """Its name, the same after every restart."""
        return self.life.name

    @property
    def is_up(self) -> bool:
        """Whether it is running, and neither stopped nor shutting down."""
        return self.process is not None and self.resume_at is None and self.leaves_by is None

    @property
    def has_begun(self) -> bool:
        """Whether it has written to its history since it was started."""
        return any(one.stat().st_size > 0 for one in self.life.folder.glob(f"{self.name}.{self.life.life:04d}*.jsonl"))

    @property
    def listens(self) -> bool:
        """Whether a server answers on its ports."""
        try:
            for port in self.ports:
                socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            return False
        return True


class Members:
    """All processes of a run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.all: list[Member] = []
        self.done: Counter[str] = Counter()
        self.stops: list[tuple[int, int]] = []
        self.struck: list[tuple[str, int, int]] = []
        """Faults: what they affected (a process, the store, the network), and when. They explain lost attempts."""
        self.ended: dict[str, int] = {}
        """When processes ended, by name and number of restarts."""
        self._folder = folder
        self._rng = random.Random(f"members:{seed}")
        self._nursery = Nursery(*PRELOADED)

    def of(self, *roles: str) -> list[Member]:
        """The members with one of these roles."""
        return [one for one in self.all if one.role in roles]

    def add(self, member: Member) -> Member:
        """Start a member."""
        self.all.append(member)
        self._launch(member, faulty=False)
        return member

    def kill(self, member: Member, *, faulty: bool = True) -> None:
        """Send SIGKILL, and restart it."""
        assert member.process is not None
        at_ms = host_clock_ms()
        member.process.kill()
        self.done[f"kills: {member.role}"] += 1
        self._note(member, at_ms)
        self._restart(member, faulty=faulty)

    def stop(self, member: Member, seconds: float) -> None:
        """Send SIGSTOP; it is resumed after this time."""
        assert member.process is not None
        member.stopped_at_ms = host_clock_ms()
        member.process.send_signal(signal.SIGSTOP)
        member.resume_at = time.monotonic() + seconds
        self.done[f"SIGSTOPs longer than the lease: {member.role}"] += 1

    def ask_to_leave(self, member: Member, seconds: float) -> None:
        """Send SIGTERM; a process that does not stop in time is killed and counted."""
        assert member.process is not None
        member.process.send_signal(signal.SIGTERM)
        member.leaves_by = time.monotonic() + seconds
        member.stopped_at_ms = host_clock_ms()

    def watch(self, *, faulty: bool = True, besides: Sequence[Member] = ()) -> None:
        """Restart processes that have ended, and resume those that have been stopped for long enough."""
        now = time.monotonic()
        for one in [one for one in self.all if one not in besides]:
            if one.resume_at is not None and now >= one.resume_at:
                self.resume(one)
            status = one.process.poll() if one.process is not None else None
            if status is not None:
                self._note_end(one, status)
                self._restart(one, faulty=faulty)
            elif one.leaves_by is not None and now >= one.leaves_by and one.process is not None:
                self.done[f"did not stop in time: {one.role}"] += 1
                one.process.kill()
                self._note(one, one.stopped_at_ms)
                self._restart(one, faulty=faulty)

    def resume(self, member: Member) -> None:
        """Send SIGCONT."""
        if member.resume_at is not None and member.process is not None:
            member.process.send_signal(signal.SIGCONT)
            member.resume_at = None
            self.stops.append((member.stopped_at_ms, host_clock_ms()))
            self._note(member, member.stopped_at_ms)

    def dismiss(self, members: Iterable[Member]) -> None:
        """Kill members that are running; they are not restarted."""
        for one in list(members):
            if one.process is not None:
                one.process.kill()
            self.all = [other for other in self.all if other is not one]

    def has_left(self, member: Member) -> bool:
        """Whether a member stopped cleanly after SIGTERM; one that crashed instead is restarted."""
        status = member.process.poll() if member.process is not None else 0
        if status not in (None, 0):
            self._note_end(member, status)
            self._restart(member, faulty=False)
        return status == 0

    def close(self) -> None:
        """End all processes."""
        self.dismiss(self.all)
        self._nursery.close()

    def _note_end(self, member: Member, status: int) -> None:
        if member.leaves_by is not None and status == 0:
            self.done[f"graceful shutdowns: {member.role}"] += 1
        elif status == -signal.SIGKILL and member.fault:
            self.done[f"kills: {member.role}"] += 1
            self.done[f"at fault points: {member.role}"] += 1
        else:
            self.done["unexpected exits"] += 1
            self.done[f"unexpected exits of {member.role} with {status}"] += 1
        self._note(member, member.stopped_at_ms if member.leaves_by is not None else host_clock_ms() - 500)

    def _note(self, member: Member, begin_ms: int) -> None:
        self.struck.append((f"{member.name}.{member.life.life}", begin_ms, host_clock_ms()))

    def _restart(self, member: Member, *, faulty: bool) -> None:
        self.ended[f"{member.name}.{member.life.life}"] = host_clock_ms()
        member.life = replace(member.life, life=member.life.life + 1)
        member.resume_at = member.leaves_by = None
        self._launch(member, faulty=faulty)

    def _launch(self, member: Member, *, faulty: bool) -> None:
        member.fault = ""
        if faulty and member.role in ("server", "manager") and self._rng.random() < _FAULT_SHARE:
            points = faults.points(faults.engine_of(member.life.url), "worker")
            member.fault = f"{self._rng.choice(points)}:{self._rng.randint(50, _FAULT_PASSAGES_MAX)}"
        given = {faults.VARIABLE: member.fault, **member.environment}
        log = self._folder / f"{member.name}.log"
        member.process = self._nursery.launch(member.module, member.life.arguments(), given, log)
        member.born_at = time.monotonic()


def server(life: Life) -> Member:
    """A server, on free ports."""
    ports = (free_port(), free_port())
    own_clock = str(life.folder / f"{life.name}.clock")
    environment = {clocks.OWN: own_clock, PORTS: " ".join(map(str, ports))}
    environment |= {"EVERWORK_API_KEY": ADMIN, "EVERWORK_LOG_FORMAT": "json"}
    return Member("server", "tests.torture.fleet.server", life, environment, ports)


def manager(life: Life) -> Member:
    """A manager with worker classes and triggers, on the store."""
    return Member("manager", "tests.torture.manager", life)


def functions(life: Life) -> Member:
    """`everwork worker` with functions, on the store."""
    return Member("functions", "tests.torture.fleet.supervisor", life)


def until_listening(members: Iterable[Member], watch: Callable[[], None]) -> None:
    """Wait until servers answer."""
    until = time.monotonic() + _LISTEN_SECONDS_MAX
    for one in members:
        while not one.listens:
            assert time.monotonic() < until, f"{one.name} does not listen"
            watch()
            time.sleep(0.05)
