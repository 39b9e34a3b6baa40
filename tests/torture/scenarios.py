"""Short stories, one per mutant: on a sound engine the checker finds nothing, on the mutated one it must.

Each runs in a process of its own (`python -m tests.torture.scenarios MUTANT URL FOLDER`), because mutants change the
engine for good and some stories end with SIGKILL. Then a sound engine heals, drains and shows the final state.
`MUTANT` may begin with `sound:`, which tells the story without the mutation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from everwork.codec.json import encode_policy
from everwork.core.job import LeasedJob, NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Release
from everwork.core.states import LIVE_STATES
from everwork.engines.open import open_engine
from tests.forked import run_forked
from tests.stores import VirtualClock
from tests.torture import crew, faults, managed_stories, mutants, plan
from tests.torture.checker import check
from tests.torture.controller import read_final_state, read_triggers
from tests.torture.fleet import stories as fleet_stories
from tests.torture.history import HistoryWriter, host_clock_ms, read_histories
from tests.torture.logged import LoggedEngine, LoggedReceiver
from tests.torture.offline import stories as spool_stories
from tests.torture.offline.spools import delivering, left_in, spools_in
from tests.torture.places import Place
from tests.torture.verdict import TIMING, Overseen, Verdict

LEASE_MS: Final = 1_000
_SECONDS_MAX: Final = 60
"""The timeout of a scenario, which takes a second, or up to 23 on a busy machine."""
_HANDED_SECONDS_MAX: Final = 20
_DRAIN_ROUNDS_MAX: Final = 20
_KINDS: Final = (*plan.TYPES, plan.MANAGED, crew.Ticker._get_settings().default_source)


class Stage:
    """Two workers, each with its own engine on one store, and the clock that both go by."""

    def __init__(
        self, workers: tuple[LoggedEngine, LoggedEngine], clock: VirtualClock, mutant: str, url: str, folder: Path
    ) -> None:
        self.first, self.second = workers
        self.clock, self.mutant, self.url, self.folder = clock, mutant, url, folder
        self._names = count()

    async def create(self, dedupe_key: str | None = None) -> int:
        """A job asked for by the first worker; its key."""
        name = f"story-{next(self._names)}"
        job = NewJob(plan.WORK, json.dumps({"r": name}), dedupe_key=dedupe_key)
        return _answer(await self.first.create([plan.Request(name, job)]))[0].key


async def take(worker: LoggedEngine, name: str = "worker", lease_ms: int = LEASE_MS) -> LeasedJob:
    """The next job, begun."""
    (job,) = _answer(await worker.activate([Demand(plan.WORK, name, 1, lease_ms)]))
    worker.history.begin(job.key, job.attempt)
    return job


async def zombie(stage: Stage) -> None:
    """A worker comes back after its lease went to another, and completes."""
    await stage.create()
    old = await take(stage.first)
    stage.clock.advance(ms=LEASE_MS)
    await stage.second.engine.sweep("second")
    stage.clock.advance(ms=LEASE_MS)
    await take(stage.second)
    await stage.first.settle([plan.outcome(old, "complete")])


async def death_after_answer(stage: Stage) -> None:
    """The process dies the moment it was told that its job is accepted."""
    await stage.create()
    faults.die()


async def poison(stage: Stage) -> None:
    """A job whose worker dies at every attempt."""
    await stage.create()
    for _ in range(plan.POLICY.max_attempts):
        await take(stage.first)
        stage.clock.advance(ms=LEASE_MS)
        await stage.second.engine.sweep("second")
        stage.clock.advance(ms=LEASE_MS)


async def release_after_completion(stage: Stage) -> None:
    """A worker hands back what it has completed."""
    await stage.create()
    job = await take(stage.first)
    await stage.first.settle([plan.outcome(job, "complete")])
    await stage.first.settle([Release(job.key, job.attempt)])


async def sweep_of_a_live_lease(stage: Stage) -> None:
    """A sweep comes by while a worker is within its time."""
    await stage.create()
    job = await take(stage.first)
    stage.clock.advance(ms=LEASE_MS // 2)
    await stage.second.engine.sweep("second")
    await stage.first.settle([plan.outcome(job, "complete")])


async def two_managers(stage: Stage) -> None:
    """Two managers fire the same time points, a moment apart."""
    names = (f"fire-{number}" for number in count())
    epoch_ms = stage.clock.now_ms
    stage.clock.advance(ms=3 * plan.TRIGGER_EVERY_MS)
    for manager in (stage.first, stage.second):
        from_now = stage.mutant == mutants.TRIGGER_FROM_NOW
        await manager.create(plan.trigger_requests(stage.clock.now_ms, epoch_ms, names, from_now=from_now))
        stage.clock.advance(ms=17)


async def death_after_commit(stage: Stage) -> None:
    """The process dies between the commit and the answer."""
    await stage.create()
    faults.set_going()
    await stage.create()


async def release_and_again(stage: Stage) -> None:
    """A job is handed back and taken again."""
    await stage.create()
    await stage.first.settle([plan.outcome(await take(stage.first), "release")])
    await stage.second.settle([plan.outcome(await take(stage.second), "complete")])


async def requeue_and_again(stage: Stage) -> None:
    """A dead letter is requeued and taken again."""
    key = await stage.create()
    job = await take(stage.first)
    await stage.first.settle([Failed(key, job.attempt, "failed for good", final=True)])
    await stage.first.requeue([key])
    await stage.second.settle([plan.outcome(await take(stage.second), "complete")])


async def same_name_twice(stage: Stage) -> None:
    """Two jobs are asked for under one dedupe key."""
    await stage.create("once")
    await stage.create("once")


async def refused_completion_with_events(stage: Stage) -> None:
    """A late completion is refused together with the events that it carries."""
    await stage.create()
    old = await take(stage.first)
    stage.clock.advance(ms=LEASE_MS)
    await stage.second.engine.sweep("second")
    stage.clock.advance(ms=LEASE_MS)
    await take(stage.second)
    await stage.first.settle([plan.stale_complete(old.key, old.attempt)])


async def completion_told_twice(stage: Stage) -> None:
    """A worker that did not hear the answer reports its completion again."""
    await stage.create()
    job = await take(stage.first)
    for _ in range(2):
        await stage.first.settle([plan.outcome(job, "complete")])


async def completion_after_another_attempt(stage: Stage) -> None:
    """A completion that was kept in a spool comes after another worker has got the job."""
    await spool_stories.completion_after_another_attempt(stage, take)


class Waiting:
    """A worker that waits for a job, and begins it when a create hands it over."""

    def __init__(self, worker: LoggedEngine) -> None:
        self._worker = worker
        self.job: asyncio.Future[LeasedJob] = asyncio.get_running_loop().create_future()

    def handed(self, job: LeasedJob) -> None:
        """Begin the job."""
        self._worker.history.begin(job.key, job.attempt)
        self.job.set_result(job)

    def lost(self) -> None:
        """Do nothing: leases expire."""


async def handed_over(stage: Stage) -> LeasedJob:
    """A job that its create hands over to the second worker."""
    waiting = Waiting(stage.second)
    receiver = LoggedReceiver(waiting, stage.second.history)
    _answer(await stage.second.activate([Demand(plan.LONE, "second", 1, LEASE_MS, receiver=receiver)]))
    _answer(await stage.first.create([plan.lone_request("story-lone")]))
    return await asyncio.wait_for(waiting.job, _HANDED_SECONDS_MAX)


async def handed_over_and_requested(stage: Stage) -> None:
    """A job is handed over to a worker that waits for it; in the meantime, another worker requests jobs."""
    handed = await handed_over(stage)
    for job in _answer(await stage.first.activate([Demand(plan.LONE, "first", 1, LEASE_MS)])):
        stage.first.history.begin(job.key, job.attempt)
    await stage.second.settle([plan.outcome(handed, "complete")])


async def handed_over_before_death(stage: Stage) -> None:
    """A worker dies with a job that was handed over to it."""
    await handed_over(stage)
    faults.die()


Story = Callable[[Stage], Awaitable[None]]

STORIES: Final[dict[str, tuple[Story, frozenset[str]]]] = {
    mutants.DROP_ATTEMPT_CHECK: (zombie, frozenset({"V6"})),
    mutants.ACK_BEFORE_COMMIT: (death_after_answer, frozenset({"V1"})),
    mutants.NO_ATTEMPT_ON_CRASH: (poison, frozenset({"V5"})),
    mutants.RELEASE_WITHOUT_STATE_CHECK: (release_after_completion, frozenset({"V4", "V7"})),
    mutants.SWEEP_WITHOUT_HORIZON: (sweep_of_a_live_lease, frozenset({"V6"})),
    mutants.TRIGGER_FROM_NOW: (two_managers, frozenset({"V12"})),
    mutants.COUNTER_OUTSIDE_TRANSACTION: (death_after_commit, frozenset({"V10"})),
    mutants.ATTEMPT_REUSED_AFTER_RELEASE: (release_and_again, frozenset({"V5"})),
    mutants.ATTEMPT_REUSED_AFTER_REQUEUE: (requeue_and_again, frozenset({"V5"})),
    mutants.DEDUPE_IGNORED: (same_name_twice, frozenset({"V3"})),
    mutants.EVENTS_WITHOUT_COMPLETION: (refused_completion_with_events, frozenset({"V9"})),
    mutants.REPEAT_FORGOTTEN: (completion_told_twice, frozenset({"V9"})),
    mutants.TIME_POINT_FROM_NOW: (managed_stories.managers_in_turns, frozenset({"V12"})),
    mutants.MARK_NOT_GUARDED: (managed_stories.managers_at_once, frozenset({"V12"})),
    mutants.BEGUN_RELEASED_AFTER_DEATH: (managed_stories.a_process_dies, frozenset({"V5"})),
    mutants.UNBEGUN_KEPT_AFTER_DEATH: (managed_stories.a_process_dies, frozenset({"V11"})),
    mutants.SPOOL_ACK_BEFORE_SYNC: (spool_stories.killed_after_the_spool_answered, frozenset({"V1"})),
    mutants.DELIVERED_WITHOUT_STAMP: (spool_stories.answer_lost, frozenset({"V2"})),
    mutants.LATE_WITHOUT_FENCE: (completion_after_another_attempt, frozenset({"V6"})),
    mutants.OUTCOME_ACK_BEFORE_COMMIT: (fleet_stories.death_after_an_outcome_was_taken, frozenset({"V8"})),
    mutants.REST_ATTEMPT_IGNORED: (fleet_stories.late_outcome_by_rest, frozenset({"V8"})),
    mutants.TENANT_CHECK_DROPPED: (fleet_stories.two_tenants, frozenset({"V14"})),
    mutants.FIRST_TENANT_ONLY: (fleet_stories.a_batch_for_two_tenants, frozenset({"V14"})),
    mutants.UNDELIVERED_KEPT: (fleet_stories.a_caller_that_has_gone, frozenset({"V11"})),
    mutants.HANDED_WITHOUT_LEASE: (handed_over_and_requested, frozenset({"V5"})),
    mutants.HANDED_FOR_GOOD: (handed_over_before_death, frozenset({"V1"})),
}


def run_scenarios(place: Place, folder: Path, progress: Callable[[str], None]) -> dict[str, str]:
    """Tell every story, sound and mutated; how each mutant was caught."""
    caught = {}
    for mutant in mutants.names(place.engine):
        progress(f"{place.engine}, mutant: {mutant}")
        _, expected = STORIES[mutant]
        sound_folder, mutant_folder = folder / f"sound-{mutant}", folder / mutant
        sound = violations(tell(f"sound:{mutant}", sound_folder, place.url(sound_folder)))
        found = tell(mutant, mutant_folder, place.url(mutant_folder)).found.keys()
        caught[mutant] = ", ".join(sorted(found & expected)) or mutants.MISSED
        if sound:
            caught[mutant] = mutants.MISSED
    return caught


def violations(verdict: Verdict) -> set[str]:
    """The numbers that are above zero and must not be."""
    return {number for number, found in verdict.found.items() if found and number not in TIMING}


def tell(mutant: str, folder: Path, url: str) -> Verdict:
    """Tell one story in a process of its own, heal, and have it judged."""
    folder.mkdir(parents=True)
    told = run_forked("tests.torture.scenarios", [mutant, url, str(folder)], timeout=_SECONDS_MAX)
    if told.returncode not in (0, -9):
        raise AssertionError(f"the story of {mutant} broke:\n{told.stderr.decode()}")
    has_processes = STORIES[mutant.removeprefix("sound:")][0] is managed_stories.a_process_dies
    return asyncio.run(_heal(url, folder, VirtualClock(host_clock_ms()) if has_processes else VirtualClock()))


async def _heal(url: str, folder: Path, clock: VirtualClock) -> Verdict:
    clock.advance(seconds=60)
    engine = open_engine(url, clock=clock)
    await engine.open()
    worker = LoggedEngine(engine, HistoryWriter(folder / "healer.jsonl", clock))
    for spool in spools_in(folder):
        await (await delivering(engine.fresh(), spool, url)).close()
    for _ in range(_DRAIN_ROUNDS_MAX):
        clock.advance(ms=LEASE_MS)
        await engine.sweep("healer")
        jobs = _answer(await worker.activate([Demand(kind, "healer", 100, 10 * LEASE_MS) for kind in _KINDS]))
        for job in jobs:
            worker.history.begin(job.key, job.attempt)
        await worker.settle([Complete(job.key, job.attempt, plan.token(job.key, job.attempt)) for job in jobs])
        if not any(one.state in LIVE_STATES for one in await engine.count()):
            break
    final = await read_final_state(engine)
    final.triggers = await read_triggers(engine)
    final.managers = {managed_stories.MANAGER: Overseen(is_near=True)}
    final.spooled = left_in(spools_in(folder))
    await engine.close()
    return check(read_histories(folder), final)


async def _perform(mutant: str, url: str, folder: Path) -> None:
    clock = VirtualClock()
    name = mutant.removeprefix("sound:")
    if mutant == name:
        mutants.apply(mutant, url)
    faults.arm(url, "after-commit:1", waiting=True)
    engines = [open_engine(url, clock=clock) for _ in range(2)]
    for engine in engines:
        await engine.open()
    for kind in _KINDS:
        await engines[0].set_policy(kind, encode_policy(plan.POLICY))
    first, second = (
        LoggedEngine(engine, HistoryWriter(folder / f"worker-{number}.jsonl", clock))
        for number, engine in enumerate(engines)
    )
    story, _ = STORIES[name]
    await story(Stage((first, second), clock, mutant, url, folder))
    for engine in engines:
        await engine.close()


Answer = TypeVar("Answer")


def _answer(answer: Answer | None) -> Answer:
    assert answer is not None
    return answer


if __name__ == "__main__":
    asyncio.run(_perform(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
