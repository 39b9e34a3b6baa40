"""settle: every outcome, fenced by the attempt, once, in one step (G3, G4, G8)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from everwork.core.job import HistoryEntry
from everwork.core.leasing import Demand, Failure, Judged, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.states import State
from tests.conformance.observe import kinds, sight
from tests.factories import (
    TYPE,
    WORKER,
    Stage,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_new_job,
    a_pending_job,
    a_processing_job,
    activated,
    asked,
    judged,
    leased_keys,
    settled,
    the_job,
)
from tests.stores import SECOND_MS

if TYPE_CHECKING:
    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.every_way("sqlite-own-loop", "redis-cluster")

KINDS = ["complete", "fail", "fail finally", "reject", "retry", "release", "throw"]
FAMILY = {"fail finally": "fail"}
"""One kind of ending in the history."""

ENDS_IN = {
    "complete": State.COMPLETED,
    "fail": State.PENDING,
    "fail finally": State.FAILED,
    "reject": State.FAILED,
    "retry": State.PENDING,
    "release": State.PENDING,
    "throw": State.FAILED,
}

CONTRADICTIONS = [
    (first, second)
    for first, second in itertools.product(KINDS, KINDS)
    if FAMILY.get(first, first) != FAMILY.get(second, second)
]


def outcome(kind: str, key: int, attempt: int) -> Outcome:
    """An outcome of the kind; whatever is retried is due again at once."""
    made: dict[str, Outcome] = {
        "complete": Complete(key, attempt, '{"n":1}'),
        "fail": Failed(key, attempt, "boom", backoff_ms=0),
        "fail finally": Failed(key, attempt, "boom", final=True),
        "reject": Reject(key, attempt, "nonsense"),
        "retry": Retry(key, attempt, "again", delay_ms=0),
        "release": Release(key, attempt),
        "throw": Throw(key, attempt, "E42", "no money"),
    }
    return made[kind]


async def refused(engine: Engine, wrong: Outcome) -> Judged:
    """The verdict on an outcome that must be refused and change nothing."""
    before = await sight(engine, wrong.key)
    verdict = await judged(engine, wrong)
    assert not verdict.ok, f"{wrong} was {verdict}"
    assert await sight(engine, wrong.key) == before
    return verdict


# What each outcome does ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_of_the_live_attempt_is_accepted(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    verdict = await judged(engine, outcome(kind, job.key, 1))
    assert (verdict.verdict, verdict.state) == (Verdict.ACCEPTED, State.PROCESSING)
    assert (await the_job(engine, job.key)).state is ENDS_IN[kind]


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("complete", None),
        ("release", None),
        ("fail", Failure(1, 3, 0, "boom")),
        ("fail finally", Failure(1, 3, None, "boom")),
        ("reject", Failure(1, 3, None, "nonsense")),
        ("retry", Failure(1, 3, 0, "again")),
        ("throw", Failure(1, 3, None, "no money")),
    ],
)
async def test_the_answer_to_a_failure_says_what_follows(engine: Engine, kind: str, failure: Failure | None) -> None:
    job = await a_processing_job(engine, max_attempts=3)
    assert (await judged(engine, outcome(kind, job.key, 1))).failure == failure
    assert (await judged(engine, outcome(kind, job.key, 1))).failure is None  # Repeated: nothing follows from it.


async def test_a_completed_job_keeps_its_result_and_who_did_it(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w7")
    clock.advance(seconds=4)
    done = await settled(engine, Complete(job.key, 1, '{"sent": "ja, Zoë"}'))
    assert (done.state, done.result, done.worker) == (State.COMPLETED, '{"sent": "ja, Zoë"}', "w7")
    assert (done.finished_at_ms, done.activated_at_ms) == (clock.now_ms, clock.now_ms - 4_000)
    assert (done.attempt, done.attempts, done.retries, done.lease_until_ms) == (1, 1, 0, None)


async def test_a_job_may_complete_without_a_result(engine: Engine) -> None:
    assert (await a_completed_job(engine, result=None)).result is None


async def test_a_failed_attempt_is_retried_after_the_default_backoff(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    again = await settled(engine, Failed(job.key, 1, "boom"))
    assert (again.state, again.run_at_ms) == (State.PENDING, clock.now_ms + 5_000)
    assert (again.last_error, again.attempt, again.attempts, again.retries) == ("boom", 1, 1, 4)
    assert (again.lease_until_ms, again.finished_at_ms) == (None, None)


async def test_the_backoff_doubles_with_every_attempt_until_the_job_is_a_dead_letter(
    engine: Engine, clock: VirtualClock
) -> None:
    job = await a_processing_job(engine)
    for attempt, delay_s in ((1, 5), (2, 10), (3, 20), (4, 40)):
        again = await settled(engine, Failed(job.key, attempt, "boom"))
        assert again.run_at_ms - clock.now_ms == delay_s * SECOND_MS
        clock.advance(seconds=delay_s)
        await activated(engine, again)
    assert (await settled(engine, Failed(job.key, 5, "boom"))).state is State.FAILED


async def test_a_dead_letter_shows_its_error_and_no_retries(engine: Engine, clock: VirtualClock) -> None:
    job = await a_dead_letter(engine, error="no such address", max_attempts=3)
    assert (job.state, job.last_error, job.retries) == (State.FAILED, "no such address", 0)
    assert (job.finished_at_ms, job.rejected, job.error_code, job.worker) == (clock.now_ms, False, None, WORKER)


async def test_the_worker_s_own_backoff_beats_the_default(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    assert (await settled(engine, Failed(job.key, 1, "boom", backoff_ms=1_234))).run_at_ms == clock.now_ms + 1_234


@pytest.mark.parametrize("kind", ["fail", "retry"])
async def test_a_retry_without_delay_is_due_at_once(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome(kind, job.key, 1))
    assert await leased_keys(engine) == [job.key]


async def test_fail_with_retries_gives_that_many_more(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    again = await settled(engine, Failed(job.key, 1, "boom", retries=7))
    assert (again.state, again.retries, again.max_attempts) == (State.PENDING, 7, 8)


async def test_fail_with_zero_retries_is_final(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=9)
    assert (await settled(engine, Failed(job.key, 1, "boom", retries=0))).state is State.FAILED


async def test_counted_attempts_never_pass_a_hundred_whatever_workers_send(engine: Engine) -> None:
    job = await a_pending_job(engine, max_attempts=100)
    for attempt in range(1, 101):
        [leased] = (await asked(engine)).jobs
        assert leased.attempts <= leased.max_attempts <= 100
        await settled(engine, Failed(job.key, attempt, "boom", retries=100, backoff_ms=0))
    dead = await the_job(engine, job.key)
    assert (dead.state, dead.attempts, dead.max_attempts) == (State.FAILED, 100, 100)


async def test_a_retry_is_bounded_by_max_attempts(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    dead = await settled(engine, Retry(job.key, 1, "again", delay_ms=0))
    assert (dead.state, dead.last_error) == (State.FAILED, "again")


async def test_a_rejected_job_is_failed_and_marked(engine: Engine) -> None:
    job = await a_processing_job(engine)
    dead = await settled(engine, Reject(job.key, 1, "nonsense"))
    assert (dead.state, dead.rejected, dead.last_error) == (State.FAILED, True, "nonsense")


async def test_a_thrown_error_keeps_its_code(engine: Engine) -> None:
    job = await a_processing_job(engine)
    dead = await settled(engine, Throw(job.key, 1, "E42", "no money"))
    assert (dead.state, dead.error_code, dead.last_error) == (State.FAILED, "E42", "no money")


async def test_a_release_is_not_counted_and_its_number_is_not_used_again(engine: Engine) -> None:
    job = await a_processing_job(engine, max_attempts=1)
    back = await settled(engine, Release(job.key, 1))
    assert (back.state, back.attempt, back.attempts, back.retries) == (State.PENDING, 1, 0, 1)
    [leased] = (await asked(engine)).jobs
    assert (leased.attempt, leased.attempts) == (2, 1)


async def test_a_released_job_keeps_its_place_in_the_queue(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine)
    clock.advance(seconds=1)
    younger = await a_pending_job(engine)
    back = await settled(engine, Release(job.key, 1))
    assert back.run_at_ms == job.run_at_ms
    assert await leased_keys(engine) == [job.key, younger.key]


async def test_any_number_of_releases_leaves_the_attempts_alone(engine: Engine) -> None:
    job = await a_pending_job(engine, max_attempts=2)
    for attempt in range(1, 8):
        await activated(engine, job)
        assert (await settled(engine, Release(job.key, attempt))).attempts == 0
    assert (await the_job(engine, job.key)).attempt == 7


# History ------------------------------------------------------------------------------------------


async def test_the_history_tells_how_a_failed_attempt_ended(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w7")
    clock.advance(seconds=2)
    await settled(engine, Failed(job.key, 1, "boom"))
    now = clock.now_ms
    assert await engine.history(job.key) == [HistoryEntry(1, "fail", now, "w7", "boom", now - 2_000, now + 5_000)]


async def test_the_history_tells_how_a_job_was_completed(engine: Engine, clock: VirtualClock) -> None:
    job = await a_processing_job(engine, worker="w7")
    clock.advance(seconds=2)
    await settled(engine, Complete(job.key, 1))
    assert await engine.history(job.key) == [
        HistoryEntry(1, "complete", clock.now_ms, "w7", None, clock.now_ms - 2_000)
    ]


async def test_the_history_goes_on_from_attempt_to_attempt(engine: Engine) -> None:
    job = await a_pending_job(engine)
    for attempt, kind in enumerate(["release", "fail", "retry", "throw"], 1):
        await activated(engine, job)
        await settled(engine, outcome(kind, job.key, attempt))
    assert await kinds(engine, job.key) == [(1, "release"), (2, "fail"), (3, "retry"), (4, "throw")]


@pytest.mark.parametrize("kind", ["fail finally", "reject", "throw"])
async def test_a_failure_that_is_not_retried_has_no_instant_of_a_retry(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome(kind, job.key, 1))
    [event] = await engine.history(job.key)
    assert event.retry_at_ms is None


async def test_the_history_keeps_the_newest_two_hundred_entries(engine: Engine) -> None:
    job = await a_pending_job(engine)
    for attempt in range(1, 206):
        await engine.settle([], [Demand(TYPE, WORKER, 1)])
        await settled(engine, Release(job.key, attempt))
    history = await engine.history(job.key)
    assert [event.attempt for event in history] == list(range(6, 206))


async def test_a_job_that_nobody_has_run_has_no_history(engine: Engine) -> None:
    assert await engine.history((await a_pending_job(engine)).key) == []
    assert await engine.history(999_999) == []


# Fencing (G3) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_of_an_old_attempt_is_refused_while_another_runs(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    await settled(engine, Release(job.key, 1) if kind != "release" else Failed(job.key, 1, "boom", backoff_ms=0))
    await activated(engine, job, worker="w2")
    assert await refused(engine, outcome(kind, job.key, 1)) == Judged(Verdict.LEASE_LOST, State.PROCESSING)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_of_an_attempt_that_has_not_begun_is_refused(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    assert await refused(engine, outcome(kind, job.key, 2)) == Judged(Verdict.LEASE_LOST, State.PROCESSING)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_after_the_lease_was_taken_away_is_refused(
    engine: Engine, clock: VirtualClock, kind: str
) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=2)
    await engine.sweep("s")
    assert await refused(engine, outcome(kind, job.key, 1)) == Judged(Verdict.LEASE_LOST, State.PENDING)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_after_the_last_lease_was_taken_away_is_refused(
    engine: Engine, clock: VirtualClock, kind: str
) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS, max_attempts=1)
    clock.advance(seconds=2)
    await engine.sweep("s")
    assert (await refused(engine, outcome(kind, job.key, 1))).state is State.FAILED


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_is_taken_after_its_lease_ran_out_as_long_as_no_sweep_came(
    engine: Engine, clock: VirtualClock, kind: str
) -> None:
    job = await a_processing_job(engine, lease_ms=SECOND_MS)
    clock.advance(seconds=60)
    assert (await judged(engine, outcome(kind, job.key, 1))).verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_of_a_job_that_was_cancelled_meanwhile_is_refused(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await engine.cancel([job.key])
    assert (await refused(engine, outcome(kind, job.key, 1))).state is State.CANCELLED


@pytest.mark.parametrize("attempt", [0, 1, 7])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_of_an_unknown_job_is_not_found(engine: Engine, kind: str, attempt: int) -> None:
    assert await refused(engine, outcome(kind, 999_999, attempt)) == Judged(Verdict.NOT_FOUND, None)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_outcome_of_a_job_that_waits_for_its_first_attempt_is_refused(engine: Engine, kind: str) -> None:
    job = await a_pending_job(engine)
    assert (await refused(engine, outcome(kind, job.key, 1))).state is State.PENDING


# Callers that cannot name the attempt -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_attempt_zero_ends_whatever_attempt_runs(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Release(job.key, 1))
    await activated(engine, job)
    verdict = await judged(engine, outcome(kind, job.key, 0))
    assert (verdict.verdict, verdict.state) == (Verdict.ACCEPTED, State.PROCESSING)
    after = await the_job(engine, job.key)
    assert (after.state, after.attempt) == (ENDS_IN[kind], 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_history_names_the_attempt_that_the_caller_could_not(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome(kind, job.key, 0))
    assert await kinds(engine, job.key) == [(1, FAMILY.get(kind, kind))]


@pytest.mark.parametrize("stage", [a_pending_job, a_completed_job, a_dead_letter, a_cancelled_job])
@pytest.mark.parametrize("kind", KINDS)
async def test_attempt_zero_is_refused_by_every_other_state(engine: Engine, stage: Stage, kind: str) -> None:
    job = await stage(engine)
    assert await refused(engine, outcome(kind, job.key, 0)) == Judged(Verdict.WRONG_STATE, job.state)


@pytest.mark.parametrize("kind", ["fail", "retry", "release"])
async def test_attempt_zero_is_refused_once_the_attempt_has_ended(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome(kind, job.key, 0))
    assert (await refused(engine, outcome(kind, job.key, 0))).verdict is Verdict.WRONG_STATE


# Repeats (G8) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_repeated_outcome_is_answered_ok_and_changes_nothing(
    engine: Engine, clock: VirtualClock, kind: str
) -> None:
    job = await a_processing_job(engine)
    after = await settled(engine, outcome(kind, job.key, 1))
    before = await sight(engine, job.key)
    clock.advance(seconds=1)
    assert await judged(engine, outcome(kind, job.key, 1)) == Judged(Verdict.REPEATED, after.state)
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("kind", ["fail", "retry", "release"])
async def test_a_repeat_is_known_while_the_next_attempt_runs(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    again = await settled(engine, outcome(kind, job.key, 1))
    await activated(engine, again)
    before = await sight(engine, job.key)
    assert await judged(engine, outcome(kind, job.key, 1)) == Judged(Verdict.REPEATED, State.PROCESSING)
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize("kind", ["fail finally", "reject", "throw"])
async def test_a_repeat_is_known_after_a_requeue(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    await settled(engine, outcome(kind, job.key, 1))
    await engine.requeue([job.key])
    before = await sight(engine, job.key)
    assert (await judged(engine, outcome(kind, job.key, 1))).verdict is Verdict.REPEATED
    assert await sight(engine, job.key) == before


@pytest.mark.parametrize(("first", "second"), CONTRADICTIONS)
async def test_another_outcome_by_an_attempt_that_has_ended_is_refused(engine: Engine, first: str, second: str) -> None:
    job = await a_processing_job(engine)
    after = await settled(engine, outcome(first, job.key, 1))
    assert (await refused(engine, outcome(second, job.key, 1))).state is after.state


@pytest.mark.parametrize("kind", KINDS)
async def test_one_outcome_twice_in_a_batch_is_accepted_once(engine: Engine, kind: str) -> None:
    job = await a_processing_job(engine)
    answer = await engine.settle([outcome(kind, job.key, 1)] * 2)
    assert [item.verdict for item in answer.judged] == [Verdict.ACCEPTED, Verdict.REPEATED]
    assert len(await engine.history(job.key)) == 1


async def test_of_two_outcomes_in_a_batch_the_first_counts(engine: Engine) -> None:
    job = await a_processing_job(engine)
    answer = await engine.settle([Complete(job.key, 1), Failed(job.key, 1, "boom")])
    assert [item.ok for item in answer.judged] == [True, False]
    assert (await the_job(engine, job.key)).state is State.COMPLETED


async def test_a_stale_outcome_does_not_hide_the_live_one_behind_it(engine: Engine) -> None:
    job = await a_processing_job(engine)
    await settled(engine, Release(job.key, 1))
    await activated(engine, job)
    answer = await engine.settle([Complete(job.key, 1), Complete(job.key, 2)])
    assert [item.verdict for item in answer.judged] == [Verdict.LEASE_LOST, Verdict.ACCEPTED]


# Batches and the fused step -----------------------------------------------------------------------


async def test_a_mixed_batch_is_judged_item_by_item_in_its_order(engine: Engine) -> None:
    jobs = {kind: await a_processing_job(engine) for kind in KINDS if ENDS_IN[kind] is not State.PENDING}
    stale, gone = await a_processing_job(engine), 999_999
    batch = [outcome(kind, job.key, 1) for kind, job in jobs.items()]
    answer = await engine.settle([Complete(gone, 1), *batch, Complete(stale.key, 5)])
    assert [item.ok for item in answer.judged] == [False, *(True for _ in jobs), False]
    assert [(await the_job(engine, job.key)).state for job in jobs.values()] == [ENDS_IN[kind] for kind in jobs]


async def test_settling_nothing_answers_nothing(engine: Engine) -> None:
    answer = await engine.settle([])
    assert (answer.judged, answer.activation.jobs) == ([], [])


async def test_a_settle_may_ask_for_the_next_jobs(engine: Engine) -> None:
    job = await a_processing_job(engine)
    waiting = await engine.create([a_new_job() for _ in range(3)])
    answer = await engine.settle([Complete(job.key, 1)], [Demand(TYPE, "w7", 2)])
    assert answer.judged == [Judged(Verdict.ACCEPTED, State.PROCESSING)]
    assert [leased.key for leased in answer.activation.jobs] == [created.key for created in waiting[:2]]
    assert (await the_job(engine, waiting[0].key)).worker == "w7"


async def test_a_settle_that_is_refused_still_gets_its_next_jobs(engine: Engine) -> None:
    waiting = await a_pending_job(engine)
    answer = await engine.settle([Complete(999_999, 1)], [Demand(TYPE, WORKER, 2)])
    assert (answer.judged[0].ok, [leased.key for leased in answer.activation.jobs]) == (False, [waiting.key])


async def test_a_settle_may_carry_demands_alone(engine: Engine) -> None:
    waiting = await a_pending_job(engine)
    answer = await engine.settle([], [Demand(TYPE, WORKER, 1)])
    assert [leased.key for leased in answer.activation.jobs] == [waiting.key]


async def test_what_a_settle_hands_back_may_be_handed_out_in_the_same_step(engine: Engine) -> None:
    job = await a_processing_job(engine)
    answer = await engine.settle([Release(job.key, 1)], [Demand(TYPE, WORKER, 1)])
    assert [(leased.key, leased.attempt) for leased in answer.activation.jobs] == [(job.key, 2)]


async def test_a_large_batch_of_outcomes_is_settled(engine: Engine) -> None:
    await engine.create([a_new_job() for _ in range(900)])
    jobs = (await asked(engine, 900)).jobs
    answer = await engine.settle([outcome(KINDS[n % 7], job.key, 1) for n, job in enumerate(jobs)])
    assert {item.verdict for item in answer.judged} == {Verdict.ACCEPTED}
    found = await engine.get([job.key for job in jobs])
    assert [state_of(job) for job in found] == [ENDS_IN[KINDS[n % 7]] for n in range(900)]


def state_of(job: StoredJob | None) -> State | None:
    return job.state if job else None
