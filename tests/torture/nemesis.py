"""What is done to a run: processes are killed and stopped at random moments, the server too, and the network is bad."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.forked import ForkedPopen
from tests.torture import faults
from tests.torture.crew import LEASE_MS
from tests.torture.history import host_clock_ms
from tests.torture.managed import Processes
from tests.torture.places import Killable, Place
from tests.torture.process import Life
from tests.torture.proxy import Proxy
from tests.torture.verdict import Overseen

_KILLS: Final = (
    "kills of workers",
    "kills of workers at fault points",
    "kills of managers",
    "kills of managed processes",
)
_BLOWS_TO_MANAGERS: Final = ("process", "soft stop", "process", "kill", "process", "process", "stop", "process")
"""In this order at first, so that a short run has some of each; then by chance."""
_EACH_AT_LEAST_ONCE: Final = ("kills of managers", "kills of managed processes", "graceful shutdowns of managers")
ROOT: Final = Path(__file__).resolve().parents[2]
_PAUSE_SECONDS: Final = (0.05, 0.3)
# How much of its history a life has written before it is struck: some die at once, some in the middle of their work.
_RIPE_BYTES: Final = (0, 1_000, 10_000, 100_000, 200_000)
_STOP_EVERY: Final = 6
_STOP_SECONDS_MAX: Final = 20
_TICK_SECONDS: Final = 0.02
_DISTURBANCE_SHARE: Final = 0.25
_PREFERENCE: Final = 0.8
_DOWN_SECONDS_MAX: Final = 1.0
# Who lost the server looks for it with growing pauses: by then it has been found again.
_RECONNECT_MS: Final = 1_000


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of."""

    place: Place
    folder: Path
    kills: int = 200
    server_kills: int = 0
    minutes: float = 0.0
    seed: int = 1
    workers: int = 4
    producers: int = 2
    managers: int = 2
    lease_ms: int = 700
    mutant: str = ""

    @property
    def url(self) -> str:
        """The store of the run."""
        return self.place.url(self.folder)


@dataclass(slots=True)
class Child:
    """A process that is started again whenever it has died."""

    module: str
    life: Life
    points: tuple[str, ...]
    process: subprocess.Popen[bytes]
    fault: str = ""
    ripe_bytes: int = 0
    resume_at: float | None = None
    stopped_at_ms: int = 0
    leaves_by: float | None = None
    """A manager that was asked to stop does so until then."""

    @property
    def role(self) -> str:
        """What it does: worker, producer or manager."""
        return self.module.rpartition(".")[2]

    @property
    def is_ripe(self) -> bool:
        """Whether it has done so much that it may be struck: on a slow machine, too, there must be work to disturb."""
        whose = "-*" if self.role == "manager" else ""
        histories = list(self.life.folder.glob(f"{self.life.name}.{self.life.life:04d}{whose}.jsonl"))
        return bool(histories) and sum(one.stat().st_size for one in histories) >= self.ripe_bytes

    @property
    def is_up(self) -> bool:
        """Whether it runs, and is neither stopped nor about to end."""
        return self.resume_at is None and self.leaves_by is None


class Nemesis:
    """The children of a run and what is done to them."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self.done: Counter[str] = Counter()
        self.slack_ms = 0
        self.healed_at_ms = 0
        self.stops: list[tuple[int, int]] = []
        self._settings = settings
        self._progress = progress
        self._rng = random.Random(settings.seed)
        self._blows = 0
        self._blows_to_managers = list(_BLOWS_TO_MANAGERS)
        self._children: list[Child] = []
        self.processes = Processes(self._rng, self.done, self.stops)
        self.managers: dict[str, Overseen] = {}
        port = settings.place.port
        self._proxy = Proxy(port) if port is not None else None

    async def begin(self) -> None:
        """Start the children; where there is a server, every other one has a bad network to it."""
        settings, epoch_ms = self._settings, host_clock_ms()
        bad_url = settings.place.url(settings.folder, await self._proxy.start()) if self._proxy else settings.url
        roles = ["worker"] * settings.workers + ["producer"] * settings.producers + ["manager"] * settings.managers
        for number, role in enumerate(roles):
            points = faults.points(settings.place.engine, role)
            has_bad_way = number % 2 == 1 and self._proxy is not None
            life = Life(
                f"{role}-{number}",
                0,
                bad_url if has_bad_way else settings.url,
                settings.folder,
                settings.seed,
                settings.lease_ms,
                epoch_ms,
                settings.mutant,
            )
            if role == "manager":
                self.managers[life.name] = Overseen(is_near=not has_bad_way)
            self._children.append(self._start(f"tests.torture.{role}", life, points, fault=False))

    async def rage(self) -> None:
        """Kill, stop and restart until the settings are met."""
        begun = time.monotonic()
        while self._goes_on(time.monotonic() - begun):
            await self._pass_time(self._rng.uniform(*_PAUSE_SECONDS))
            victim = self._victim()
            if victim.is_up and victim.is_ripe:
                self._strike(victim)
            if self._settings.place.server is not None:
                await self._strike_the_server(self._settings.place.server)
            self._progress(f"{self.kills} of {self._settings.kills} kills, {time.monotonic() - begun:.0f} s")

    def _victim(self) -> Child:
        """Somebody; a manager, as long as something has not been done to any."""
        managers = [child for child in self._children if child.role == "manager" and child.is_up and child.is_ripe]
        if managers and not all(self.done[one] for one in _EACH_AT_LEAST_ONCE) and self._rng.random() < _PREFERENCE:
            return self._rng.choice(managers)
        return self._rng.choice(self._children)

    def _goes_on(self, seconds: float) -> bool:
        settings = self._settings
        return (
            self.kills < settings.kills
            or self.server_kills < settings.server_kills
            or seconds < settings.minutes * 60
            or (settings.managers > 0 and not all(self.done[one] for one in _EACH_AT_LEAST_ONCE))
        )

    @property
    def server_kills(self) -> int:
        """Deaths of the database server by SIGKILL."""
        return self.done["kills of the server"]

    @property
    def kills(self) -> int:
        """Deaths of workers, managers and their processes by SIGKILL; producers die on top of these."""
        return sum(self.done[one] for one in _KILLS)

    @property
    def has_server(self) -> bool:
        """Whether there is a server that may have been killed."""
        return self._settings.place.server is not None

    def heal(self) -> None:
        """Let everybody run, start whoever is dead, without faults."""
        self.healed_at_ms = host_clock_ms()
        if self._proxy is not None:
            self._proxy.heal()
        for child in self._children:
            self._resume(child)
        self.processes.resume()
        self.watch(faulty=False)

    async def stop_producers(self) -> None:
        """Ask the producers to finish, and wait for it."""
        await self._terminate([child for child in self._children if child.role == "producer"])

    def watch(self, *, faulty: bool = True) -> None:
        """Start again whoever died at a fault point or left, and wake who has been stopped long enough."""
        now = time.monotonic()
        self.processes.resume(now)
        for child in self._children:
            if child.resume_at is not None and now >= child.resume_at:
                self._resume(child)
            if child.leaves_by is not None and now >= child.leaves_by:
                self.done["managers that did not stop in time"] += 1
                child.process.kill()
                child.process.wait()
            status = child.process.poll()
            if status is not None:
                self._note_end(child, status)
                self._restart(child, faulty=faulty)

    def _note_end(self, child: Child, status: int) -> None:
        if status == -signal.SIGKILL and child.leaves_by is None:
            self.done[f"kills of {child.role}s at fault points"] += 1
            self.done[f"of these {child.fault.partition(':')[0]}"] += 1
        elif status == 0 and child.leaves_by is not None:
            self.done["graceful shutdowns of managers"] += 1
        else:
            self.done["unexpected exits"] += 1

    async def end(self) -> None:
        """Stop every child in an orderly way, and by force who does not go."""
        for child in self._children:
            self._resume(child)
        self.processes.resume()
        await self._terminate(self._children)
        self.done["unexpected exits"] += await self.processes.leave(self._settings.folder)
        if self._proxy is not None:
            await self._proxy.close()

    async def _pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            slept = time.monotonic()
            # Kills come at random moments of real time, hence a real pause.
            await asyncio.sleep(_TICK_SECONDS)
            late_ms = int((time.monotonic() - slept - _TICK_SECONDS) * 1000)
            self.slack_ms = max(self.slack_ms, late_ms)
            self.watch()

    async def _strike_the_server(self, server: Killable) -> None:
        """Kill the server whenever its share of the kills has come, and let it come back; disturb it in between."""
        settings = self._settings
        due = (self.server_kills + 1) * settings.kills <= self.kills * (settings.server_kills + 1)
        if due and self.server_kills < settings.server_kills:
            begun_ms = host_clock_ms()
            server.kill()
            await self._pass_time(self._rng.uniform(0, _DOWN_SECONDS_MAX))
            server.start()
            self.stops.append((begun_ms, host_clock_ms() + _RECONNECT_MS))
            self.done["kills of the server"] += 1
        elif self._rng.random() < _DISTURBANCE_SHARE:
            self.done[settings.place.disturb(self._rng)] += 1
        elif self._proxy is not None and self._rng.random() < _DISTURBANCE_SHARE:
            self.done[self._proxy.disturb(self._rng)] += 1

    def _strike(self, child: Child) -> None:
        if child.role == "manager" and self._strike_manager(child):
            return
        self._blows += child.role == "worker"
        if child.role == "worker" and self._blows % _STOP_EVERY == 0:
            self._stop(child, self._settings.lease_ms)
            self.done["SIGSTOPs longer than the lease"] += 1
            return
        child.process.kill()
        child.process.wait()
        self.done[f"kills of {child.role}s"] += 1
        self._restart(child, faulty=True)

    def _strike_manager(self, child: Child) -> bool:
        """Strike one of its processes, stop it, or ask it to stop; False: it is to be killed itself."""
        chosen = self._blows_to_managers[0] if self._blows_to_managers else self._rng.choice(_BLOWS_TO_MANAGERS)
        if chosen == "process" and self.processes.strike(child.life, child.process.pid):
            del self._blows_to_managers[:1]
            return True
        del self._blows_to_managers[:1]
        self.managers[child.life.name].struck_ms.append(host_clock_ms())
        match chosen:
            case "stop":
                self._stop(child, LEASE_MS)
                self.done["SIGSTOPs of managers longer than the lease"] += 1
            case "soft stop":
                child.process.terminate()
                child.leaves_by = time.monotonic() + _STOP_SECONDS_MAX
            case _:
                return False
        return True

    def _stop(self, child: Child, lease_ms: int) -> None:
        child.stopped_at_ms = host_clock_ms()
        child.process.send_signal(signal.SIGSTOP)
        child.resume_at = time.monotonic() + lease_ms / 1000 * self._rng.uniform(1.2, 2.0)

    def _restart(self, child: Child, *, faulty: bool) -> None:
        life = replace(child.life, life=child.life.life + 1)
        fresh = self._start(child.module, life, child.points, fault=faulty and self._rng.random() < 0.4)
        child.life, child.process, child.fault = life, fresh.process, fresh.fault
        child.resume_at = child.leaves_by = None
        child.ripe_bytes = fresh.ripe_bytes

    def _start(self, module: str, life: Life, points: tuple[str, ...], *, fault: bool) -> Child:
        # A process of a manager also passes points while it starts, and does more for each job.
        passages = self._rng.randint(1, 400 if module.endswith("manager") else 40)
        setting = f"{self._rng.choice(points)}:{passages}" if fault else ""
        environment = {**os.environ, faults.VARIABLE: setting}
        output = (life.folder / f"{life.name}.log").open("ab")
        with output:
            process = ForkedPopen([module, *life.arguments()], cwd=ROOT, env=environment, stdout=output, stderr=output)
        return Child(module, life, points, process, setting, self._rng.choice(_RIPE_BYTES))

    def _resume(self, child: Child) -> None:
        if child.resume_at is not None:
            child.process.send_signal(signal.SIGCONT)
            child.resume_at = None
            self.stops.append((child.stopped_at_ms, host_clock_ms()))

    async def _terminate(self, children: list[Child]) -> None:
        for child in children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for child in children:
            # Not by waiting in this thread: the children's way to the server goes through its event loop.
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(child.process.wait, max(deadline - time.monotonic(), 0.1))
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
                self.done["unexpected exits"] += 1
            if child in self._children:
                self._children = [one for one in self._children if one is not child]
