"""A run of the whole fleet: servers on one store, clients of every kind, faults, the drain, the verdict."""

from __future__ import annotations

import asyncio
import os
import pickle  # noqa: TID251 - data of this run only, for later analysis
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everwork.codec.json import encode_policy
from everwork.core.states import LIVE_STATES, State
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import EngineError
from everwork.service.access.keys import KeyRing
from tests.torture import clocks, crew, plan
from tests.torture.checker import check
from tests.torture.controller import Run, facts_of, finish, read_final_state, read_triggers
from tests.torture.fleet import members as fleet
from tests.torture.fleet.members import Member, Members
from tests.torture.fleet.parts import BRAKE, TENANTS, TYPES, ZEEBE, Caller
from tests.torture.fleet.storm import Storm
from tests.torture.history import HistoryWriter, host_clock_ms, read_histories
from tests.torture.logged import LoggedEngine
from tests.torture.managed import Processes
from tests.torture.nemesis import Progress
from tests.torture.offline.spools import is_waiting, left_in, spools_in
from tests.torture.places import Disk, Place
from tests.torture.process import Life, patiently
from tests.torture.verdict import FinalState, Overseen, Ticking, Verdict

_TICK_SECONDS: Final = 0.05
_COUNT_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 180.0
_LEAVE_SECONDS_MAX: Final = 30.0
_WAYS: Final = ("rest", "grpc", "stream", "zeebe")
_MODULES: Final = {"rest": "worker", "grpc": "worker", "stream": "streamer", "zeebe": "zeebe"}
FINAL: Final = "final.pickle"


@dataclass(frozen=True, slots=True)
class Settings:
    """The parts of a run, and when it ends."""

    place: Place
    folder: Path
    jobs: int = 100_000
    kills: int = 450
    server_kills: int = 45
    minutes: float = 0.0
    seed: int = 1
    lease_ms: int = 3_000
    kills_per_minute: float = 60.0
    mutant: str = ""
    backlog: int = 600
    """If more jobs than this are pending, producers wait."""
    is_small: bool = False
    """One client of each kind, and no process that uses the store except the servers."""

    @property
    def store(self) -> Path:
        """The folder of the store, which is separate because its disk is filled."""
        return self.folder / "store"


async def storm(settings: Settings, progress: Progress = lambda _: None) -> Run:
    """One run from the empty store to the verdict."""
    begun = time.monotonic()
    os.environ[clocks.HOST] = str(settings.folder / "clock")
    clocks.follow()
    disk = Disk(settings.store)
    engine = open_engine(settings.place.url(settings.store))
    campaign = Campaign(settings, engine, progress, disk)
    try:
        await engine.open()
        await campaign.prepare()
        await campaign.start()
        await campaign.rage()
        drain_ms = await campaign.drain()
        progress("reading the final state")
        await finish(LoggedEngine(engine, HistoryWriter(settings.folder / "controller.jsonl")))
        final, facts = await campaign.final_state(drain_ms), await facts_of(engine)
    finally:
        await campaign.close()
        await engine.close()
        disk.remove()
        del os.environ[clocks.HOST]
    (settings.folder / FINAL).write_bytes(pickle.dumps(final))
    progress("checking")
    verdict = judge(settings.folder)
    return Run(settings.place.engine, settings.seed, verdict, campaign.members.done, time.monotonic() - begun, facts)


def judge(folder: Path) -> Verdict:
    """Check an earlier run again, from its folder."""
    final: FinalState = pickle.loads((folder / FINAL).read_bytes())
    return check(read_histories(folder), final)


class Campaign:
    """The fleet of a run, and the faults that it is exposed to."""

    def __init__(self, settings: Settings, engine: Engine, progress: Progress, disk: Disk) -> None:
        self.settings = settings
        self.members = Members(settings.folder, settings.seed)
        self.acknowledged = Tally(settings.folder)
        self.healed_at_ms = 0
        self.slack_ms = 0
        self._engine = engine
        self._progress = progress
        self._epoch_ms = host_clock_ms()
        self._keys: dict[str, str] = {}
        self._processes = Processes(self.members._rng, self.members.done, self.members.stops)
        self._managers: dict[str, Overseen] = {}
        self.storm = Storm(self.members, self._processes, settings.place, settings.lease_ms, settings.seed)
        if settings.place.server is None and disk.is_there:
            self.storm.disk = disk

    async def prepare(self) -> None:
        """Create policies, groups and keys before any process starts."""
        for name in TYPES:
            await self._engine.set_policy(name, encode_policy(plan.POLICY))
        await self._engine.set_policy(plan.LIMITED, encode_policy(plan.LIMITED_POLICY))
        await self._engine.add_group(plan.WORK, plan.AUDIT)
        for settings in (worker._get_settings() for worker in crew.WORKERS if not self.settings.is_small):
            for source in sorted(settings.sources):
                await self._engine.subscribe(source, settings.id)
        keys = KeyRing(self._engine, environment_key=None, rate_limit=0)
        for tenant in TENANTS:
            self._keys[tenant] = (await keys.create(tenant, ["jobs"], tenants=[tenant])).text

    async def start(self) -> None:
        """Start the servers, then all other processes."""
        settings = self.settings
        servers = [self.members.add(fleet.server(await self._life(f"server-{at}", at))) for at in range(2)]
        await asyncio.to_thread(fleet.until_listening, servers, lambda: None)
        await self.storm.open(servers)
        for number, (way, tenant) in enumerate((way, tenant) for tenant in TENANTS for way in _WAYS):
            if not settings.is_small or number % 2 == TENANTS.index(tenant):
                self._add_client(way, f"tests.torture.fleet.{_MODULES[way]}", way, tenant, number)
        self._add_producer("grpc-spooling", TENANTS[0], 1, spool=True)
        self._add_producer("rest-producer", TENANTS[1], 1)
        if settings.is_small:
            return
        self._add_producer("rest-producer", TENANTS[0], 0)
        for at, tenant in enumerate(TENANTS):
            self._add_producer("grpc-producer", tenant, at + 1)
        self.members.add(fleet.functions(await self._life("functions-0", 0)))
        manager = self.members.add(fleet.manager(await self._life("manager-0", 0)))
        self._managers[manager.name] = Overseen(is_near=True)

    def _add_producer(self, name: str, tenant: str, at: int, *, spool: bool = False) -> None:
        self._add_client("producer", "tests.torture.fleet.producer", name, tenant, at, spool=spool)

    async def _life(self, name: str, at: int) -> Life:
        settings = self.settings
        url = await self.storm.store_url(settings.store, is_bad=at == 1)
        return Life(name, 0, url, settings.folder, settings.seed, settings.lease_ms, self._epoch_ms, settings.mutant)

    def _add_client(self, role: str, module: str, name: str, tenant: str, at: int, *, spool: bool = False) -> None:
        settings = self.settings
        name = f"{name}-{tenant[-1]}"
        grpc_port, http_port = self.storm.ports(at % 2, is_bad=at % 3 == 1)
        spool_path = str(settings.folder / f"{name}.spool") if spool else ""
        unserved = (plan.MANAGED, *[ZEEBE] * (tenant == TENANTS[0])) if settings.is_small else ()
        caller = Caller(tenant, self._keys[tenant], grpc_port, http_port, spool_path, unserved)
        life = Life(
            name, 0, caller.grpc_url, settings.folder, settings.seed, settings.lease_ms, self._epoch_ms,
            settings.mutant,
        )  # fmt: skip
        self.members.add(Member(role, module, life, caller.environment(), is_near=at % 3 != 1))

    # The storm ------------------------------------------------------------------------------------

    async def rage(self) -> None:
        """Inject faults until the run has enough jobs, kills and time."""
        begun, settings = time.monotonic(), self.settings
        counted_at = 0.0
        while self._goes_on(time.monotonic() - begun):
            await self._pass_time(self.storm.pause(settings.kills_per_minute))
            await self.storm.strike(self.storm_shares(), self._pass_time)
            if time.monotonic() - counted_at > _COUNT_SECONDS:
                counted_at = time.monotonic()
                await self._brake()
            self._tell(time.monotonic() - begun)

    def storm_shares(self) -> bool:
        """Whether the next kill of the store is due; these kills are spread evenly over the run."""
        settings = self.settings
        done = min(self.storm.kills / max(settings.kills, 1), self.acknowledged.count() / max(settings.jobs, 1), 1.0)
        return self.storm.store_kills < settings.server_kills * done

    def _goes_on(self, seconds: float) -> bool:
        settings = self.settings
        return (
            self.storm.kills < settings.kills
            or self.storm.store_kills < (settings.server_kills if settings.place.server else 0)
            or self.acknowledged.count() < settings.jobs
            or seconds < settings.minutes * 60
        )

    def _tell(self, seconds: float) -> None:
        settings = self.settings
        self._progress(
            f"{settings.place.engine}: {seconds:.0f} s, {self.acknowledged.count()} of {settings.jobs} jobs, "
            f"{self.storm.kills} of {settings.kills} kills, {self.storm.store_kills} of the store"
        )

    async def _brake(self) -> None:
        """Make producers wait while there are enough pending jobs."""
        brake = self.settings.folder / BRAKE
        try:
            counts = await self._engine.count()
        except EngineError:
            return
        pending = [one for one in counts if one.state is State.PENDING]
        limited = sum(one.jobs for one in pending if one.type == plan.LIMITED)  # Its rate and its breaker hold it back.
        if sum(one.jobs for one in pending) > self.settings.backlog or limited > self.settings.backlog / 4:
            brake.touch()
        else:
            brake.unlink(missing_ok=True)

    async def _pass_time(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            slept = time.monotonic()
            # Kills come at random moments of real time, hence a real pause.
            await asyncio.sleep(_TICK_SECONDS)
            self.slack_ms = max(self.slack_ms, int((time.monotonic() - slept - _TICK_SECONDS) * 1000))
            self.members.watch()
            self._processes.resume(time.monotonic())
            if time.monotonic() >= until:
                return

    # The end --------------------------------------------------------------------------------------

    async def drain(self) -> int:
        """End all faults, stop the producers, and wait until every job has finished and every spool is empty."""
        begun = time.monotonic()
        self.healed_at_ms = host_clock_ms()
        await self.storm.heal()
        for one in self.members.all:
            self.members.resume(one)
        self._processes.resume()
        await self._until_served()
        await self._leave(self.members.of("producer"))
        while time.monotonic() - begun < _PATIENCE_SECONDS and not await self._is_drained():
            self.members.watch(faulty=False)
            await asyncio.sleep(_TICK_SECONDS)
        drain_ms = int((time.monotonic() - begun) * 1000)
        await self._leave([one for one in self.members.all if one.role != "server"])
        self.members.done["unexpected exits"] += await self._processes.leave(self.settings.folder)
        await self._leave(self.members.of("server"))
        return drain_ms

    async def _until_served(self) -> None:
        """Wait until every server is running; one that received SIGTERM may still be stopping."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not all(one.is_up and one.listens for one in self.members.of("server")):
            assert time.monotonic() < until, "a server has not restarted"
            self.members.watch(faulty=False)
            await asyncio.sleep(_TICK_SECONDS)

    async def _is_drained(self) -> bool:
        counts = await patiently(self._engine.count, outages=True)
        if any(one.state in LIVE_STATES and one.jobs for one in counts):
            return False
        if any(map(is_waiting, spools_in(self.settings.folder))):
            return False
        ticking = await self._triggers()
        return all(one.mark.last_ms + one.every_ms > one.due_ms for one in ticking)

    async def _triggers(self) -> list[Ticking]:
        """The state of the managers' triggers, if there are managers."""
        return await read_triggers(self._engine, due_ms=self.healed_at_ms) if self._managers else []

    async def _leave(self, leaving: list[Member]) -> None:
        """Send SIGTERM to processes, and wait until they have stopped."""
        until = time.monotonic() + _LEAVE_SECONDS_MAX
        waiting = list(leaving)
        while waiting:
            for one in waiting:
                if one.leaves_by is None and one.has_begun and one.process is not None:
                    self.members.ask_to_leave(one, _LEAVE_SECONDS_MAX)
            await asyncio.sleep(_TICK_SECONDS)
            waiting = [one for one in waiting if not self.members.has_left(one)]
            self.members.watch(faulty=False, besides=leaving)
            if time.monotonic() > until:
                self.members.done["unexpected exits"] += len(waiting)
                self.members.done.update(f"did not stop in the end: {one.name}" for one in waiting)
                break
        self.members.dismiss(leaving)

    async def final_state(self, drain_ms: int) -> FinalState:
        """The final state in the engine, and the faults of the run."""
        final = await read_final_state(self._engine)
        final.drain_ms, final.slack_ms, final.stops = drain_ms, self.slack_ms, self.members.stops
        final.managers, final.deaths = self._managers, self._processes.deaths
        final.triggers = await self._triggers()
        final.spooled = left_in(spools_in(self.settings.folder))
        final.struck, final.ended, final.jumps = self.members.struck, self.members.ended, self.storm.jumps
        return final

    async def close(self) -> None:
        """End all processes."""
        self.members.close()
        await self.storm.close()


class Tally:
    """Counts acknowledged jobs in the growing histories of the producers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self._count = 0
        self._counted_at = 0.0

    def count(self) -> int:
        """The number so far; the histories are read at most every `_COUNT_SECONDS`."""
        if time.monotonic() - self._counted_at > _COUNT_SECONDS:
            self._counted_at = time.monotonic()
            for path in self._folder.glob("*.jsonl"):
                if "producer" in path.name or "spooling" in path.name:
                    self._count += self._new_in(path)
        return self._count

    def _new_in(self, path: Path) -> int:
        with path.open("rb") as file:
            file.seek(self._read[path])
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] += len(whole)
        return sum(line.count(b",false]") for line in whole.splitlines() if line.startswith(b'{"e":"ok"'))
