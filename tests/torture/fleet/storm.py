"""The faults of a fleet: SIGKILL, SIGSTOP and SIGTERM of all processes; faults of the store and the network."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from tests.torture import clocks
from tests.torture.fleet.members import Member, Members
from tests.torture.history import host_clock_ms
from tests.torture.managed import Processes
from tests.torture.places import ClusterNode, Disk, Place
from tests.torture.proxy import Proxy

_RECONNECT_MS: Final = 1_500
"""The time after which processes that lost the store have reconnected; they wait longer after each failure."""
_DOWN_SECONDS_MAX: Final = 1.0
_LEAVE_SECONDS: Final = 25.0
_AGE_SECONDS: Final = (0.3, 6.0)
"""How long a process runs at least before a fault: some die right after starting, some in the middle of their work."""
_KILL: Final = "kill"
_BLOWS: Final = (_KILL, _KILL, _KILL, _KILL, _KILL, _KILL, "stop", "leave")
_DISTURBANCE_SHARE: Final = 0.3
_PROCESS_SHARE: Final = 0.7
_CLOCK_SHARE: Final = 0.05
_DISK_SHARE: Final = 0.04
FAILOVER: Final = "failovers: "
"""The prefix of the failover counters; the reason follows."""
_RESTARTED_SOON: Final = 3
"""Every third killed node is restarted before its replica takes over."""
_FAILOVER_SECONDS_MAX: Final = 60.0
_FAILOVER_TICK_SECONDS: Final = 0.1
_FULL_SECONDS: Final = (0.3, 2.5)
_JUMP_MS: Final = (500, 5_000)
_WRONG_MS_MAX: Final = 3_600_000
PassTime = Callable[[float], Awaitable[None]]


class Storm:
    """The faults of a run."""

    def __init__(self, members: Members, processes: Processes, place: Place, lease_ms: int, seed: int) -> None:
        self._members = members
        self._processes = processes
        self._place = place
        self._lease_ms = lease_ms
        self._rng = random.Random(f"storm:{seed}")
        self._links: list[Proxy] = []
        self._ports: dict[tuple[int, bool], tuple[int, int]] = {}
        self._store_link: Proxy | None = None
        self._store_port: int | None = None
        self.store_kills = 0
        self.disk: Disk | None = None
        """The disk of the store, if it can be filled."""
        self.jumps: list[tuple[int, int]] = []
        """When the host's clock jumped, and how far."""

    @property
    def kills(self) -> int:
        """How many processes were killed with SIGKILL."""
        done = self._members.done
        return sum(times for name, times in done.items() if name.startswith("kills") and name != "kills: store")

    async def store_url(self, folder: Path, *, is_bad: bool) -> str:
        """The URL of the store; through a faulty proxy if requested, and if the engine has a port."""
        port = self._place.port
        if not is_bad or port is None:
            return self._place.url(folder)
        if self._store_link is None:
            self._store_link = Proxy(port)
            self._store_port = await self._store_link.start()
            self._links.append(self._store_link)
        return self._place.url(folder, self._store_port)

    async def open(self, servers: Sequence[Member]) -> None:
        """Start a faulty proxy for each port of each server."""
        for number, one in enumerate(servers):
            self._ports[number, False] = one.ports
            ways = [Proxy(port) for port in one.ports]
            self._links += ways
            grpc_port, http_port = [await way.start() for way in ways]
            self._ports[number, True] = (grpc_port, http_port)

    def ports(self, server: int, *, is_bad: bool) -> tuple[int, int]:
        """The ports of a server, or of its faulty proxies."""
        return self._ports[server, is_bad]

    def pause(self, strikes_per_minute: float) -> float:
        """How long to wait before the next fault."""
        return self._rng.uniform(0.3, 1.7) * 60 / strikes_per_minute

    async def strike(self, store_is_due: bool, pass_time: PassTime) -> None:
        """Inject one or more faults; kill the store if that is due."""
        if self._place.server is not None and store_is_due:
            await self._kill_the_store(pass_time)
        elif self._rng.random() < _DISTURBANCE_SHARE:
            self._disturb()
        if self._rng.random() < _CLOCK_SHARE:
            self._turn_a_clock()
        if self.disk is not None and self._rng.random() < _DISK_SHARE:
            await self._fill_the_disk(self.disk, pass_time)
        victim = self._victim()
        if victim is not None:
            self._strike(victim)

    def _victim(self) -> Member | None:
        """A process that has been running for a while; only one server at a time."""
        age = self._rng.uniform(*_AGE_SECONDS)
        servers = self._members.of("server")
        may_strike_server = all(one.is_up and one.listens for one in servers)
        old = [
            one
            for one in self._members.all
            if one.is_up and time.monotonic() - one.born_at > age and (one.role != "server" or may_strike_server)
        ]
        weights = [2.0 if one.role == "server" else 1.0 for one in old]
        return self._rng.choices(old, weights)[0] if old else None

    def _strike(self, victim: Member) -> None:
        blow = self._rng.choice(_BLOWS)
        if self._strikes_a_process_of(victim):
            return
        if blow == _KILL or not victim.has_begun:
            self._members.kill(victim)
        elif blow == "stop":
            self._members.stop(victim, self._lease_ms / 1000 * self._rng.uniform(1.2, 2.0))
        else:
            self._members.ask_to_leave(victim, _LEAVE_SECONDS)

    def _strikes_a_process_of(self, victim: Member) -> bool:
        """If a process has child processes, usually inject the fault into one of these."""
        if victim.role not in ("manager", "functions") or self._rng.random() > _PROCESS_SHARE:
            return False
        return victim.process is not None and self._processes.strike(victim.life, victim.process.pid)

    async def _kill_the_store(self, pass_time: PassTime) -> None:
        server = self._place.server
        assert server is not None
        if isinstance(server, ClusterNode):
            await self._fail_over(server, pass_time)
            await pass_time(self._rng.uniform(0, _DOWN_SECONDS_MAX))
        begun_ms = host_clock_ms()
        server.kill()
        if isinstance(server, ClusterNode) and (self.store_kills + 1) % _RESTARTED_SOON:
            await _until_failed_over(server, pass_time)
            self._members.done[f"{FAILOVER}primary killed"] += 1
        await pass_time(self._rng.uniform(0, _DOWN_SECONDS_MAX))
        server.start()
        self._note_outage("kills: store", begun_ms)
        self.store_kills += 1

    async def _fail_over(self, server: ClusterNode, pass_time: PassTime) -> None:
        """A planned failover: the replica takes over from a healthy node."""
        begun_ms = host_clock_ms()
        server.fail_over()
        await _until_failed_over(server, pass_time)
        server.wait()
        self._note_outage(f"{FAILOVER}planned", begun_ms)

    async def _fill_the_disk(self, disk: Disk, pass_time: PassTime) -> None:
        """Fill the disk of the store for a while."""
        begun_ms = host_clock_ms()
        disk.fill()
        try:
            await pass_time(self._rng.uniform(*_FULL_SECONDS))
        finally:
            disk.empty()
        self._note_outage("disk full", begun_ms)

    def _turn_a_clock(self) -> None:
        """Make the host's clock jump forward if the store uses it; otherwise, the clock of one server."""
        begun_ms = host_clock_ms()
        if self._place.server is None:
            by_ms = self._rng.randint(*_JUMP_MS)
            clocks.clock_at(os.environ[clocks.HOST]).jump(by_ms)
            self.jumps.append((begun_ms, by_ms))
            # A store in a file moves its leases by as much, so what was left of them remains after the jump.
            self._note_outage("jumps of the host's clock", begun_ms, self._lease_ms)
            return
        server = self._rng.choice(self._members.of("server"))
        wrong_ms = self._rng.choice((-1, 1)) * self._rng.randint(1, _WRONG_MS_MAX)
        clocks.clock_at(server.environment[clocks.OWN]).jump(wrong_ms)
        self._members.done["jumps of a server's clock"] += 1

    def _note_outage(self, what: str, begun_ms: int, felt_ms: int = _RECONNECT_MS) -> None:
        end_ms = host_clock_ms() + felt_ms
        self._members.stops.append((begun_ms, end_ms))
        self._members.struck.append(("store", begun_ms, end_ms))
        self._members.done[what] += 1

    def _disturb(self) -> None:
        begun_ms = host_clock_ms()
        if self._place.server is not None and self._rng.random() < 0.5:
            done = self._place.disturb(self._rng)
        else:
            done = self._rng.choice(self._links).disturb(self._rng)
        self._members.done[done] += 1
        self._members.struck.append(("network", begun_ms, host_clock_ms() + _RECONNECT_MS))

    async def heal(self) -> None:
        """End all faults of the network."""
        for link in self._links:
            link.heal()

    async def close(self) -> None:
        """Close all proxies."""
        for link in self._links:
            await link.close()


async def _until_failed_over(server: ClusterNode, pass_time: PassTime) -> None:
    until = time.monotonic() + _FAILOVER_SECONDS_MAX
    while not server.has_failed_over():
        assert time.monotonic() < until, "no replica has taken over"
        await pass_time(_FAILOVER_TICK_SECONDS)
