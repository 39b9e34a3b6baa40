"""A run in offline mode: outages of the store while producers and workers work and are killed, then the verdict."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from everwork.codec.json import encode_policy
from everwork.core.states import LIVE_STATES
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import EngineError
from tests.torture import faults
from tests.torture.checker import check
from tests.torture.controller import Run, facts_of, read_final_state
from tests.torture.history import host_clock_ms, read_histories
from tests.torture.nemesis import Progress
from tests.torture.offline import parts, remote
from tests.torture.offline.nursery import SERVER, Launched, Nursery
from tests.torture.offline.outages import KEY, Gateway, Outages
from tests.torture.offline.spools import is_waiting, left_in, spools_in
from tests.torture.places import Place
from tests.torture.process import Life, patiently

_TICK_SECONDS: Final = 0.05
_SWEEP_SECONDS: Final = 0.5
_FAULT_SHARE: Final = 0.4
_FAULT_PASSAGES_MAX: Final = 200
_RECOVERY_MS: Final = 3_000
"""Who lost the store looks for it with growing pauses."""
_PATIENCE_SECONDS: Final = 300.0
"""Far more than a drain takes; reached only by a defect."""


@dataclass(frozen=True, slots=True)
class Ordeal:
    """What a run is made of."""

    place: Place
    folder: Path
    outages: int = 3
    away_seconds: float = 60.0
    kills: int = 60
    acknowledged: int = 20_000
    seed: int = 1
    producers: int = 4
    workers: int = 3
    lease_ms: int = 10_000
    through_server: bool = False
    """Whether producers and workers are clients of a server, which is killed too."""
    mutant: str = ""


@dataclass(slots=True)
class Member:
    """A process that is started again whenever it has died."""

    role: str
    life: Life
    process: Launched
    is_leaving: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether this life has done something."""
        history = self.life.file(self.life.life)
        return history.exists() and history.stat().st_size > 0

    @property
    def has_worked(self) -> bool:
        """Whether this life has run a job, or has had one acknowledged."""
        sign = b'"begin"' if self.role == "worker" else b'"ok"'
        return self.has_begun and sign in self.life.file(self.life.life).read_bytes()


async def endure(ordeal: Ordeal, progress: Progress = lambda _: None) -> Run:
    """One run from the empty store to the verdict."""
    begun = time.monotonic()
    outages = Outages(ordeal.place, ordeal.folder)
    url = await outages.start()
    engine = open_engine(outages.url)
    await engine.open()
    await engine.set_policy(parts.TYPE, encode_policy(parts.retry_policy(ordeal.lease_ms)))
    crowd, sweeping = Crowd(ordeal), asyncio.create_task(_sweep(engine))
    try:
        crowd.start(url, outages)
        await _rage(ordeal, crowd, outages, progress)
        progress("draining")
        drain_ms = await _drain(engine, crowd, ordeal.folder)
        await crowd.stop("worker")
        final, facts = await read_final_state(engine), await facts_of(engine)
    finally:
        sweeping.cancel()
        crowd.kill_all()
        await outages.close()
        await engine.close()
    final.drain_ms, final.stops, final.slack_ms = drain_ms, crowd.stops, crowd.slack_ms
    final.spooled = left_in(spools_in(ordeal.folder))
    progress("checking")
    verdict = check(read_histories(ordeal.folder), final)
    return Run(ordeal.place.engine, ordeal.seed, verdict, crowd.done, time.monotonic() - begun, facts)


async def _sweep(engine: Engine) -> None:
    """Find lapsed leases also while everybody else is cut off: what comes late then has to take its lease back."""
    while True:
        with suppress(EngineError):
            await engine.sweep("controller")
        await asyncio.sleep(_SWEEP_SECONDS)


async def _rage(ordeal: Ordeal, crowd: Crowd, outages: Outages, progress: Progress) -> None:
    """The store goes away and comes back; kills are spread over both times, until there were enough of all."""
    rng = random.Random(ordeal.seed)
    for number in range(ordeal.outages):
        share = ordeal.kills * (2 * number + 1) // (2 * ordeal.outages)
        await crowd.suffer(share, ordeal.away_seconds / 4, rng)
        await crowd.until_everybody_works()
        outage = outages.choose(number, rng)
        progress(f"{outage.name}, {crowd.kills} of {ordeal.kills} kills")
        begun_ms, kept = host_clock_ms(), crowd.acknowledged(b"[-")
        outage.leave()
        share = ordeal.kills * (2 * number + 2) // (2 * ordeal.outages)
        try:
            await crowd.suffer(share, ordeal.away_seconds, rng)
            await crowd.until_jobs_are_kept(kept)
        finally:
            outage.come_back()
        crowd.done[outage.name] += 1
        crowd.stops.append((begun_ms, host_clock_ms() + _RECOVERY_MS))
    while crowd.acknowledged() < ordeal.acknowledged:
        await crowd.pass_time(1.0)
        progress(f"{crowd.acknowledged()} of {ordeal.acknowledged} jobs acknowledged")


async def _drain(engine: Engine, crowd: Crowd, folder: Path) -> int:
    """Let the producers deliver and go, and wait until no job is live and no spool holds anything."""
    begun = time.monotonic()
    crowd.watch(faulty=False)
    await crowd.stop("producer")
    while time.monotonic() - begun < _PATIENCE_SECONDS:
        crowd.watch(faulty=False)
        counts = await patiently(engine.count, outages=True)
        has_live = any(one.state in LIVE_STATES and one.jobs for one in counts)
        if not has_live and not any(map(is_waiting, spools_in(folder))):
            break
        await engine.wait_finished(100)
    return int((time.monotonic() - begun) * 1000)


class Crowd:
    """The producers and workers of a run."""

    def __init__(self, ordeal: Ordeal) -> None:
        self.done: Counter[str] = Counter()
        self.stops: list[tuple[int, int]] = []
        self.slack_ms = 0
        self._ordeal = ordeal
        self._rng = random.Random(f"crowd:{ordeal.seed}")
        self._members: list[Member] = []
        self._nursery = Nursery(*[SERVER] * ordeal.through_server)

    @property
    def kills(self) -> int:
        """Deaths by SIGKILL so far."""
        return sum(times for name, times in self.done.items() if name.startswith("kills"))

    def start(self, url: str, outages: Outages) -> None:
        """Start everybody, the server first if there is one."""
        ordeal, epoch_ms = self._ordeal, host_clock_ms()
        if ordeal.through_server:
            life = Life("server-0", 0, url, ordeal.folder, ordeal.seed, ordeal.lease_ms, epoch_ms, ordeal.mutant)
            gateway = Gateway(self._nursery, life)
            gateway.start()
            outages.add_server(gateway)
            url = gateway.url
        for role, number in (("worker", ordeal.workers), ("producer", ordeal.producers)):
            for at in range(number):
                life = Life(
                    f"{role}-{at}", 0, url, ordeal.folder, ordeal.seed, ordeal.lease_ms, epoch_ms, ordeal.mutant
                )
                self._members.append(Member(role, life, self._launch(role, life, faulty=False)))

    async def suffer(self, kills: int, seconds: float, rng: random.Random) -> None:
        """Kill until there were so many kills in all, over at least this time."""
        begun, so_far = time.monotonic(), self.kills
        while (passed := time.monotonic() - begun) < seconds or self.kills < kills:
            await self.pass_time(rng.uniform(0.5, 1.5) * _TICK_SECONDS)
            due = so_far + (kills - so_far) * min(1.0, passed / max(seconds, _TICK_SECONDS))
            victim = rng.choice(self._members)
            if self.kills < due and victim.has_begun:
                victim.process.kill()
                self.done[f"kills of {victim.role}s"] += 1
                self._restart(victim, faulty=True)

    async def until_everybody_works(self) -> None:
        """Wait until each process that lives now has done its work: there is something to disturb."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not all(one.has_worked for one in self._members):
            assert time.monotonic() < until, "a process does nothing"
            await self.pass_time(_TICK_SECONDS)

    async def until_jobs_are_kept(self, before: int) -> None:
        """Wait until more jobs than before were acknowledged into spools: who calls may wait for the store at first."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while self.acknowledged(b"[-") <= before:
            assert time.monotonic() < until, "the store is away, and no job is kept"
            await self.pass_time(_TICK_SECONDS)

    def acknowledged(self, sign: bytes = b",false]") -> int:
        """How many jobs were acknowledged: the answers that the producers have written, by a sign in each."""
        return sum(path.read_bytes().count(sign) for path in self._ordeal.folder.glob("producer-*.jsonl"))

    async def pass_time(self, seconds: float) -> None:
        """Let the processes work; those that have died are started again."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            slept = time.monotonic()
            await asyncio.sleep(_TICK_SECONDS)  # Real time: the store is away for so long.
            self.slack_ms = max(self.slack_ms, int((time.monotonic() - slept - _TICK_SECONDS) * 1000))
            self.watch()

    def watch(self, *, faulty: bool = True) -> None:
        """Start again whoever died at a fault point."""
        for one in self._members:
            status = one.process.poll()
            if status is not None:
                self._note_death(one, status)
                self._restart(one, faulty=faulty)

    async def stop(self, role: str) -> None:
        """Ask the processes of a role to stop, and wait for it; those that die first have another life for it."""
        leaving = [one for one in self._members if one.role == role]
        until = time.monotonic() + _PATIENCE_SECONDS
        while leaving:
            for one in leaving:
                if one.has_begun and not one.is_leaving:  # Before that it would not know what the signal means.
                    one.process.send_signal(signal.SIGTERM)
                    one.is_leaving = True
            await asyncio.sleep(_TICK_SECONDS)
            leaving = [one for one in leaving if not self._has_left(one)]
            assert time.monotonic() < until, f"{[one.life.name for one in leaving]} do not stop"
        self._members = [one for one in self._members if one.role != role]

    def _has_left(self, one: Member) -> bool:
        status = one.process.poll()
        if status is not None and status != 0:
            self._note_death(one, status)
            self._restart(one, faulty=False)
        return status == 0

    def _note_death(self, one: Member, status: int) -> None:
        is_fault = status == -signal.SIGKILL
        self.done[f"kills of {one.role}s at fault points" if is_fault else "unexpected exits"] += 1

    def kill_all(self) -> None:
        """Leave nobody behind."""
        for one in self._members:
            one.process.kill()
        self._nursery.close()

    def _restart(self, one: Member, *, faulty: bool) -> None:
        one.life = replace(one.life, life=one.life.life + 1)
        one.process, one.is_leaving = self._launch(one.role, one.life, faulty=faulty), False

    def _launch(self, role: str, life: Life, *, faulty: bool) -> Launched:
        setting = ""
        if faulty and self._rng.random() < _FAULT_SHARE:
            setting = f"{self._rng.choice(parts.POINTS)}:{self._rng.randint(1, _FAULT_PASSAGES_MAX)}"
        module, log = f"tests.torture.offline.{role}", life.folder / f"{life.name}.log"
        return self._nursery.launch(module, life.arguments(), {faults.VARIABLE: setting, remote.KEY: KEY}, log)
