"""The controller: starts real processes, kills and stops them at random moments, heals, drains, and has it judged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from everwork.core.job import HistoryEntry, Job
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.states import LIVE_STATES
from everwork.engines.base import Engine
from everwork.engines.codec import encode_policy
from everwork.engines.open import open_engine
from everwork.engines.values import JobFilter
from everwork.service.loops import BackgroundLoop
from everwork.service.service import SWEEP_SECONDS
from tests.servers import Server
from tests.torture import faults, plan
from tests.torture.checker import DRAIN_MS_MAX, check
from tests.torture.history import host_clock_ms, read_histories
from tests.torture.places import Place
from tests.torture.process import Life, patiently
from tests.torture.verdict import FinalState, Verdict

ROOT: Final = Path(__file__).resolve().parents[2]
_PAUSE_SECONDS: Final = (0.05, 0.3)
_STOP_EVERY: Final = 6
_STOP_SECONDS_MAX: Final = 20
_TICK_SECONDS: Final = 0.02
_DISTURBANCE_SHARE: Final = 0.25
_DOWN_SECONDS_MAX: Final = 1.0
_HISTORIES_AT_ONCE: Final = 50


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
    resume_at: float | None = None
    stopped_at_ms: int = 0


@dataclass(slots=True)
class Run:
    """A finished run: the verdict, and what was done to the processes."""

    settings: Settings
    verdict: Verdict
    nemeses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


Progress = Callable[[str], None]


async def torture(settings: Settings, progress: Progress = lambda _: None) -> Run:
    """One run from the empty store to the verdict."""
    begun = time.monotonic()
    engine = open_engine(settings.url)
    await engine.open()
    # Somebody is always alive to sweep, as a server or a further worker would be; the workers sweep too.
    upkeep = BackgroundLoop("torture-upkeep", lambda: _sweep(engine), SWEEP_SECONDS)
    try:
        await _prepare(engine)
        upkeep.start()
        nemesis = Nemesis(settings, progress)
        try:
            await nemesis.rage()
            drain_ms = await _drain(engine, nemesis)
        finally:
            nemesis.end()
        progress("reading the final state")
        final = await read_final_state(engine)
        final.drain_ms, final.slack_ms, final.stops = drain_ms, nemesis.slack_ms, nemesis.stops
    finally:
        await upkeep.stop()
        await engine.close()
    progress("checking")
    verdict = check(read_histories(settings.folder), final)
    return Run(settings, verdict, nemesis.done, time.monotonic() - begun)


class Nemesis:
    """The children of a run and what is done to them."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self.done: Counter[str] = Counter()
        self.slack_ms = 0
        self.stops: list[tuple[int, int]] = []
        self._settings = settings
        self._progress = progress
        self._rng = random.Random(settings.seed)
        self._blows = 0
        self._children: list[Child] = []
        epoch_ms = host_clock_ms()
        roles = ["worker"] * settings.workers + ["producer"] * settings.producers
        for number, role in enumerate(roles):
            points = faults.points(settings.place.engine, role)
            life = Life(
                f"{role}-{number}",
                0,
                settings.url,
                settings.folder,
                settings.seed,
                settings.lease_ms,
                epoch_ms,
                settings.mutant,
            )
            self._children.append(self._start(f"tests.torture.{role}", life, points, fault=False))

    async def rage(self) -> None:
        """Kill, stop and restart until the settings are met."""
        begun = time.monotonic()
        while self._goes_on(time.monotonic() - begun):
            await self._pass_time(self._rng.uniform(*_PAUSE_SECONDS))
            victim = self._rng.choice(self._children)
            has_begun = victim.life.file(victim.life.life).exists()
            if has_begun and victim.resume_at is None:
                self._strike(victim)
            if self._settings.place.server is not None:
                await self._strike_the_server(self._settings.place.server)
            self._progress(f"{self.kills} of {self._settings.kills} kills, {time.monotonic() - begun:.0f} s")

    def _goes_on(self, seconds: float) -> bool:
        settings = self._settings
        return (
            self.kills < settings.kills or self.server_kills < settings.server_kills or seconds < settings.minutes * 60
        )

    @property
    def server_kills(self) -> int:
        """Deaths of the database server by SIGKILL."""
        return self.done["kills of the server"]

    @property
    def kills(self) -> int:
        """Deaths of workers by SIGKILL, from outside or at a fault point; producers die on top of these."""
        return self.done["kills of workers"] + self.done["kills of workers at fault points"]

    @property
    def has_server(self) -> bool:
        """Whether there is a server that may have been killed."""
        return self._settings.place.server is not None

    def heal(self) -> None:
        """Let everybody run, start whoever is dead, without faults."""
        for child in self._children:
            self._resume(child)
        self.watch(faulty=False)

    def stop_producers(self) -> None:
        """Ask the producers to finish, and wait for it."""
        self._terminate([child for child in self._children if child.module.endswith("producer")])

    def watch(self, *, faulty: bool = True) -> None:
        """Start again whoever died at a fault point, and wake who has been stopped long enough."""
        now = time.monotonic()
        for child in self._children:
            if child.resume_at is not None and now >= child.resume_at:
                self._resume(child)
            status = child.process.poll()
            if status == -signal.SIGKILL:
                role = "workers" if child.module.endswith("worker") else "producers"
                self.done[f"kills of {role} at fault points"] += 1
                self.done[f"of these {child.fault.partition(':')[0]}"] += 1
            if status is not None:
                self.done["unexpected ends"] += status != -signal.SIGKILL
                self._restart(child, faulty=faulty)

    def end(self) -> None:
        """Stop every child in an orderly way, and by force who does not go."""
        for child in self._children:
            self._resume(child)
        self._terminate(self._children)

    async def _pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            slept = time.monotonic()
            # Kills come at random moments of real time, hence a real pause.
            await asyncio.sleep(_TICK_SECONDS)
            late_ms = int((time.monotonic() - slept - _TICK_SECONDS) * 1000)
            self.slack_ms = max(self.slack_ms, late_ms)
            self.watch()

    async def _strike_the_server(self, server: Server) -> None:
        """Kill the server whenever its share of the kills has come, and let it come back; disturb it in between."""
        settings = self._settings
        due = (self.server_kills + 1) * settings.kills <= self.kills * (settings.server_kills + 1)
        if due and self.server_kills < settings.server_kills:
            begun_ms = host_clock_ms()
            server.kill()
            await self._pass_time(self._rng.uniform(0, _DOWN_SECONDS_MAX))
            server.start()
            self.stops.append((begun_ms, host_clock_ms()))
            self.done["kills of the server"] += 1
        elif self._rng.random() < _DISTURBANCE_SHARE:
            self.done[settings.place.disturb(self._rng)] += 1

    def _strike(self, child: Child) -> None:
        is_worker = child.module.endswith("worker")
        self._blows += is_worker
        if is_worker and self._blows % _STOP_EVERY == 0:
            child.stopped_at_ms = host_clock_ms()
            child.process.send_signal(signal.SIGSTOP)
            child.resume_at = time.monotonic() + self._settings.lease_ms / 1000 * self._rng.uniform(1.2, 2.0)
            self.done["stops past the lease"] += 1
            return
        child.process.kill()
        child.process.wait()
        self.done["kills of workers" if is_worker else "kills of producers"] += 1
        self._restart(child, faulty=True)

    def _restart(self, child: Child, *, faulty: bool) -> None:
        life = replace(child.life, life=child.life.life + 1)
        fresh = self._start(child.module, life, child.points, fault=faulty and self._rng.random() < 0.4)
        child.life, child.process, child.fault, child.resume_at = life, fresh.process, fresh.fault, None

    def _start(self, module: str, life: Life, points: tuple[str, ...], *, fault: bool) -> Child:
        setting = f"{self._rng.choice(points)}:{self._rng.randint(1, 40)}" if fault else ""
        environment = {**os.environ, faults.VARIABLE: setting}
        output = (life.folder / f"{life.name}.log").open("ab")
        with output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *life.arguments()],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
            )
        return Child(module, life, points, process, setting)

    def _resume(self, child: Child) -> None:
        if child.resume_at is not None:
            child.process.send_signal(signal.SIGCONT)
            child.resume_at = None
            self.stops.append((child.stopped_at_ms, host_clock_ms()))

    def _terminate(self, children: list[Child]) -> None:
        for child in children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for child in children:
            try:
                child.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                self.done["unexpected ends"] += 1
            if child in self._children:
                self._children = [one for one in self._children if one is not child]


async def _sweep(engine: Engine) -> bool:
    return (await engine.sweep("torture-controller")).more


async def _prepare(engine: Engine) -> None:
    for name in plan.TYPES:
        await engine.set_policy(name, encode_policy(plan.POLICY))
    await engine.add_group(plan.WORK, plan.AUDIT)


async def _drain(engine: Engine, nemesis: Nemesis) -> int:
    """Heal, stop the producers, and wait until no job is live or the time is over; answers how long it took."""
    begun = time.monotonic()
    nemesis.heal()
    nemesis.stop_producers()
    while (passed_ms := int((time.monotonic() - begun) * 1000)) <= DRAIN_MS_MAX:
        nemesis.watch(faulty=False)
        counts = await patiently(engine.count, outages=nemesis.has_server)
        if not any(one.state in LIVE_STATES and one.jobs for one in counts):
            break
        await patiently(lambda: engine.wait_finished(100), outages=nemesis.has_server)
    return passed_ms


async def read_final_state(engine: Engine) -> FinalState:
    """Everything that the engine shows, read through its contract."""
    jobs: dict[int, Job] = {}
    cursor: int | None = None
    while True:
        page = await engine.list(JobFilter(), LIST_LIMIT_MAX, cursor)
        jobs.update((job.key, job) for job in page.jobs)
        cursor = page.next
        if cursor is None:
            break
    full = [job for start in range(0, len(jobs), 500) for job in await engine.get(list(jobs)[start : start + 500])]
    jobs = {job.key: job for job in full if job is not None}
    events: dict[int, list[HistoryEntry]] = {}
    for start in range(0, len(jobs), _HISTORIES_AT_ONCE):
        keys = list(jobs)[start : start + _HISTORIES_AT_ONCE]
        events.update(zip(keys, await asyncio.gather(*map(engine.history, keys)), strict=True))
    stats = await engine.stats(24)
    groups = {known.type: tuple(group for group in known.groups if group) for known in await engine.types()}
    return FinalState(jobs, events, await engine.count(), stats.hours, groups)
