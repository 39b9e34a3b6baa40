"""Dead letters: in groups, brought back and purged by a filter."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.fingerprint import fingerprint
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.core.queries import BulkChange, JobFilter
from everwork.core.states import State
from everwork.exceptions import InvalidInput, JobNotFound, NothingMatches, PermissionDenied, WrongState
from everwork.service import dead_letters
from everwork.service.access.principal import Permission, Principal
from everwork.service.bulk import BulkFilter
from everwork.service.dead_letters import DeadLetterAction, dead_filter, grouped
from everwork.service.jobs import Jobs, in_process
from everwork.service.verb import Caller
from tests.factories import TYPE, a_completed_job, a_dead_letter, a_pending_job, a_processing_job, the_state
from tests.stores import HOUR_MS, START_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from everwork.core.leasing import Judged
    from everwork.engines.contract import Engine
    from everwork.service.service import JobService
    from tests.stores import VirtualClock


def jobs_for(service: JobService, *tenants: str, permission: Permission = Permission.JOBS) -> Jobs:
    """Whoever holds such a key."""
    return Jobs(service, Caller(Principal("k1", "ann", frozenset([permission]), tenants), "10.0.0.7"))


def jobs_of(service: JobService, *tenants: str) -> Jobs:
    """The same for questions."""
    return jobs_for(service, *tenants, permission=Permission.JOBS_READ)


async def test_dead_letters_are_grouped_by_type_and_kind_of_error(
    engine: Engine, service: JobService, clock: VirtualClock
) -> None:
    await a_dead_letter(engine, error="timed out after 5 s")
    clock.advance(ms=HOUR_MS)
    latest = await a_dead_letter(engine, error="timed out after 30 s")
    await a_dead_letter(engine, error="refused")
    await a_dead_letter(engine, error="refused", type="other")
    await a_completed_job(engine)
    found = await grouped(jobs_of(service), dead_filter())
    timed_out = found.groups[0]
    assert (timed_out.type, timed_out.jobs, timed_out.fingerprint) == (TYPE, 2, fingerprint("timed out after 1 s"))
    assert (timed_out.first_ms, timed_out.last_ms) == (START_MS, START_MS + HOUR_MS)
    assert (timed_out.key, timed_out.error) == (latest.key, "timed out after 30 s")
    assert [(one.type, one.jobs) for one in found.groups[1:]] == [(TYPE, 1), ("other", 1)]
    assert (found.looked_at, found.is_cut, found.left_out) == (4, False, 0)
    assert (await grouped(jobs_of(service), dead_filter(), 1)).left_out == 2


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (dead_filter(type="other"), 1),
        (dead_filter(tenants=("acme",)), 1),
        (dead_filter(error_text="TIMED"), 2),
        (dead_filter(fingerprint=fingerprint("timed out after 9 s")), 2),
        (dead_filter(failed_after_ms=START_MS + HOUR_MS), 2),
        (dead_filter(failed_before_ms=START_MS + HOUR_MS), 1),
    ],
    ids=str,
)
async def test_a_filter_requeues_what_it_shows_and_nothing_else(
    engine: Engine, service: JobService, clock: VirtualClock, wanted: BulkFilter, matched: int
) -> None:
    jobs = [await a_dead_letter(engine, error="timed out after 5 s", type="other")]
    clock.advance(ms=HOUR_MS)
    jobs.append(await a_dead_letter(engine, error="timed out after 30 s"))
    jobs.append(await a_dead_letter(engine, error="refused", tenant="acme"))
    shown = sum(group.jobs for group in (await grouped(jobs_of(service), wanted)).groups)
    admin = jobs_for(service)
    assert await admin.change_dead(DeadLetterAction.REQUEUE, wanted, dry_run=True) == BulkChange(matched, 0)
    assert await admin.change_dead(DeadLetterAction.REQUEUE, wanted) == BulkChange(matched, matched)
    states = [await the_state(engine, job.key) for job in jobs]
    assert (shown, states.count(State.PENDING), states.count(State.FAILED)) == (matched, matched, 3 - matched)


async def test_what_was_done_is_written_down_and_what_was_not_is_not(engine: Engine, service: JobService) -> None:
    admin = jobs_for(service, permission=Permission.ALL)
    for act in DeadLetterAction:
        with pytest.raises(NothingMatches, match="no dead letter matches"):
            await admin.change_dead(act, dead_filter(type=TYPE))
    await a_dead_letter(engine)
    await admin.change_dead(DeadLetterAction.PURGE, dead_filter(type=TYPE), dry_run=True)
    steps: list[BulkChange] = []
    await admin.change_dead(DeadLetterAction.PURGE, dead_filter(type=TYPE), progress=steps.append)
    assert steps == [BulkChange(1, 1)]
    [entry] = await service.audit.last(10)
    assert (entry.action, entry.target) == ("dead.purge", TYPE)
    assert dict(entry.detail) == {"matched": 1, "changed": 1, "filter": {"type": TYPE}}


async def test_every_dead_letter_is_meant_only_if_that_is_said(engine: Engine, service: JobService) -> None:
    job = await a_dead_letter(engine)
    for wanted, all in ((dead_filter(), False), (dead_filter(type=TYPE), True)):
        with pytest.raises(InvalidInput, match=r"all: (must be true|cannot be combined with a filter)"):
            await jobs_for(service).change_dead(DeadLetterAction.PURGE, wanted, all=all)
    for act in DeadLetterAction:
        with pytest.raises(InvalidInput, match="error: must "):
            await jobs_for(service).change_dead(act, dead_filter(error_text=""))
    assert await the_state(engine, job.key) is State.FAILED
    assert await jobs_for(service).change_dead(DeadLetterAction.REQUEUE, dead_filter(), all=True) == BulkChange(1, 1)


async def test_whatever_a_filter_says_of_states_only_dead_letters_are_changed(
    engine: Engine, service: JobService
) -> None:
    done, dead = await a_completed_job(engine), await a_dead_letter(engine)
    for states in (frozenset[State](), frozenset([State.COMPLETED])):
        everything = BulkFilter(JobFilter(states=states))
        with pytest.raises(InvalidInput, match="all: must be true"):
            await jobs_for(service).change_dead(DeadLetterAction.PURGE, everything)
    finished = BulkFilter(JobFilter(type=TYPE, states=frozenset([State.COMPLETED, State.FAILED])))
    assert await jobs_for(service).change_dead(DeadLetterAction.PURGE, finished) == BulkChange(1, 1)
    assert [job and job.key for job in await engine.get([done.key, dead.key])] == [done.key, None]


async def test_dead_letters_above_a_key_and_those_that_are_not_scheduled_are_left_alone(
    engine: Engine, service: JobService
) -> None:
    older, newer = await a_dead_letter(engine), await a_dead_letter(engine)
    admin = jobs_for(service)
    with pytest.raises(NothingMatches):
        await admin.change_dead(DeadLetterAction.PURGE, replace(dead_filter(), scheduled=True))
    below = replace(dead_filter(), below=newer.key)
    assert await admin.change_dead(DeadLetterAction.PURGE, below) == BulkChange(1, 1)
    assert [job and job.key for job in await engine.get([older.key, newer.key])] == [None, newer.key]


async def test_a_change_in_process_ends_its_step_when_its_caller_leaves(
    engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = await a_dead_letter(engine)
    requeue, begun, go_on = engine.requeue, asyncio.Event(), asyncio.Event()

    async def slow(keys: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await requeue(keys)

    monkeypatch.setattr(engine, "requeue", slow)
    calling = asyncio.create_task(in_process(service).requeue_matching(JobFilter(), all=True))
    await begun.wait()
    calling.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await the_state(engine, letter.key) is State.PENDING


async def test_a_bound_key_sees_and_touches_its_own_dead_letters_only(engine: Engine, service: JobService) -> None:
    mine, other = await a_dead_letter(engine, tenant="acme"), await a_dead_letter(engine, tenant="umbrella")
    assert [group.key for group in (await grouped(jobs_of(service, "acme"), dead_filter())).groups] == [mine.key]
    ann = jobs_for(service, "acme")
    with pytest.raises(PermissionDenied):
        await ann.change_dead(DeadLetterAction.PURGE, dead_filter(tenants=("umbrella",)))
    with pytest.raises(JobNotFound):
        await ann.purge(other.key)
    with pytest.raises(PermissionDenied):
        await jobs_for(service, permission=Permission.JOBS_READ).change_dead(
            DeadLetterAction.REQUEUE, dead_filter(), all=True
        )
    assert await ann.change_dead(DeadLetterAction.PURGE, dead_filter(), all=True) == BulkChange(1, 1)
    assert [job and job.tenant for job in await engine.get([mine.key, other.key])] == [None, "umbrella"]


async def test_one_dead_letter_is_purged_and_no_other_job(engine: Engine, service: JobService) -> None:
    letter = await a_dead_letter(engine)
    for job in (await a_completed_job(engine), await a_processing_job(engine), await a_pending_job(engine)):
        with pytest.raises(WrongState, match=f"is {job.state.label}: only dead letters can be deleted this way"):
            await jobs_for(service).purge(job.key)
        assert await the_state(engine, job.key) is job.state
    await jobs_for(service).purge(letter.key)
    with pytest.raises(JobNotFound):
        await jobs_for(service).purge(letter.key)


async def test_the_newest_are_looked_at_and_the_answer_says_that_it_was_cut(
    engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "SCANNED_MAX", 2)
    for error in ("old", "new", "newest"):
        await a_dead_letter(engine, error=error)
    found = await grouped(jobs_of(service), dead_filter())
    assert ({group.error for group in found.groups}, found.looked_at, found.is_cut) == ({"new", "newest"}, 2, True)


@pytest.mark.parametrize("text", ["", "17", "bljmjdjfpz", "BLJMJDJFPN", "bljmjdjfpnn", None])
def test_what_is_no_fingerprint_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput, match="fingerprint: must be 10 letters from a to p"):
        dead_letters.require_fingerprint(text)


async def test_a_dead_letter_that_is_requeued_and_completed_during_a_purge_stays(
    engine: Engine, service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = await a_dead_letter(engine)
    delete = engine.delete

    async def delete_late(keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Judged]:
        await engine.requeue([letter.key])
        [job] = (await engine.activate([Demand(letter.type, "w", 1)])).jobs
        await engine.settle([Complete(job.key, job.attempt)])
        return await delete(keys, attempts)

    monkeypatch.setattr(engine, "delete", delete_late)
    changed = await in_process(service).change_dead(DeadLetterAction.PURGE, dead_filter(), all=True)
    assert changed == BulkChange(1, 0)
    assert await the_state(engine, letter.key) is State.COMPLETED
