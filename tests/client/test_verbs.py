"""Every verb gives the same answers in process and over the wire."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from everwork.client import Client, SyncClient, new_job
from everwork.codec.proto_replies import stats_message, stats_of
from everwork.core.leasing import Created, Judged, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Release
from everwork.core.queries import Count, Reason, Stats
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.exceptions import InvalidInput, JobFailed, JobNotFound, LeaseLost, ResultTimeout, WrongState
from everwork.proto.work_pb2 import StatsResponse

NOBODY = 9_000_000_000_000_000_000
NOWHERE = "grpc://127.0.0.1:1"


async def test_a_job_is_given_back_as_it_was_created(client: Client) -> None:
    expires = datetime(2100, 1, 1, tzinfo=UTC)
    created = await client.create(
        "email-send",
        {"to": "a@example.org", "n": 1, "deep": [{"x": None}], "text": "ß"},
        delay=3600,
        tenant="acme",
        priority=-7,
        dedupe_key="d1",
        limit_key="l1",
        correlation_id="c1",
        expires_at=expires,
        timeout=2.5,
        headers={"trace": "t"},
        retry=RetryPolicy(max_attempts=9),
        extra={"from": "test"},
    )
    job = await client.get(created.key)
    assert (job.type, job.state, job.tenant, job.priority) == ("email-send", State.PENDING, "acme", -7)
    assert job.variables == {"to": "a@example.org", "n": 1, "deep": [{"x": None}], "text": "ß"}
    assert (job.headers, job.extra, job.result) == ({"trace": "t"}, {"from": "test"}, None)
    assert (job.dedupe_key, job.limit_key, job.correlation_id) == ("d1", "l1", "c1")
    assert (job.max_attempts, job.retries, job.attempts, job.attempt) == (9, 9, 0, 0)
    assert (job.timeout_ms, job.expires_at_ms) == (2500, int(expires.timestamp() * 1000))
    assert job.run_at_ms == job.created_at_ms + 3_600_000
    assert (job.worker, job.lease_until_ms, job.activated_at_ms, job.copy_of) == (None, None, None, None)


async def test_the_same_dedupe_key_is_the_same_job(client: Client) -> None:
    first = await client.create("email-send", dedupe_key="d1")
    assert await client.create("email-send", dedupe_key="d1") == Created(first.key, True)


async def test_many_jobs_are_created_in_one_step(client: Client) -> None:
    pairs = [("email-send", {"n": n}) for n in range(500)]
    created = await client.create_many([*pairs, new_job("report", {}, priority=3)])
    assert len({one.key for one in created}) == 501
    assert (await client.get(created[-1].key)).priority == 3
    assert await client.create_many([]) == []


async def test_a_job_in_a_batch_that_is_wrong_is_named_by_its_place(client: Client) -> None:
    with pytest.raises(InvalidInput, match=r"jobs\[1\].variables"):
        await client.create_many([("a", {}), ("b", 7)])  # type: ignore[list-item]
    assert (await client.page()).jobs == []


async def test_an_activated_job_shows_what_a_worker_needs(client: Client) -> None:
    created = await client.create("email-send", {"to": "a"}, headers={"h": 1}, correlation_id="c", extra={"e": 2})
    [job] = await client.activate("email-send", worker="w1", limit=5, lease=60)
    assert (job.key, job.attempt, job.type, job.tenant, job.group) == (created.key, 1, "email-send", "<default>", "")
    assert (job.variables, job.headers, job.extra, job.correlation_id) == ({"to": "a"}, {"h": 1}, {"e": 2}, "c")
    assert (job.attempts, job.max_attempts, job.retries, job.priority) == (1, 5, 5, 0)
    assert (job.timeout_ms, job.limit_key, job.is_lost) == (None, None, False)
    seen = await client.get(created.key)
    assert (seen.state, seen.worker, seen.lease_until_ms) == (State.PROCESSING, "w1", job.lease_until_ms)


async def test_an_activation_waits_for_work(client: Client) -> None:
    waiting = asyncio.create_task(client.activate("email-send", wait=60))
    await asyncio.sleep(0)
    created = await client.create("email-send")
    assert [job.key for job in await asyncio.wait_for(waiting, 45)] == [created.key]


async def test_an_activation_of_nothing_ends_with_nothing(client: Client) -> None:
    assert await client.activate("email-send") == []
    assert await client.activate("email-send", wait=0.05) == []


async def test_tenants_confine_an_activation(client: Client) -> None:
    await client.create("email-send", tenant="a")
    mine = await client.create("email-send", tenant="b")
    assert [job.key for job in await client.activate("email-send", tenants=["b"])] == [mine.key]


async def test_a_completed_job_has_its_result_and_its_events(client: Client) -> None:
    job = await a_job(client)
    await client.complete(job, {"sent": True}, events=[("report", {"of": job.key})])
    assert await client.result(job.key) == {"sent": True}
    assert [event.variables async for event in client.list(type="report")] == [{"of": job.key}]
    await client.complete(job, {"sent": True})  # A repeat by the same attempt changes nothing.


async def test_a_failure_says_how_often_and_when_again(client: Client) -> None:
    job = await a_job(client, variables={"a": 1, "b": 1})
    await client.fail(job, "no answer", retries=7, backoff=600, variables={"b": 2})
    seen = await client.get(job.key)
    assert (seen.state, seen.retries, seen.last_error) == (State.PENDING, 7, "no answer")
    assert seen.variables == {"a": 1, "b": 2}
    [entry] = await client.history(job.key)
    assert (entry.kind, entry.error, entry.attempt, entry.worker) == ("fail", "no answer", 1, "w1")
    assert entry.retry_at_ms == seen.run_at_ms == entry.at_ms + 600_000


async def test_a_final_failure_is_a_dead_letter_until_somebody_requeues_it(client: Client) -> None:
    job = await a_job(client)
    await client.fail(job, "no such address", final=True)
    with pytest.raises(JobFailed, match="no such address") as raised:
        await client.result(job.key)
    assert raised.value.key == job.key
    assert await client.requeue(job.key) is State.FAILED
    assert (await client.get(job.key)).state is State.PENDING


async def test_a_dead_letter_is_requeued_with_other_variables(client: Client) -> None:
    job = await a_job(client, variables={"to": "ann", "n": 1})
    await client.fail(job, "no such address", final=True)
    for bad, problem in (
        (["to"], "must be a JSON object"),
        ({"to": "x" * 2_000_000}, "must be at most 1,048,576 bytes"),
    ):
        with pytest.raises(InvalidInput, match=f"variables: {problem}"):
            await client.requeue(job.key, bad)  # type: ignore[arg-type]
    assert (await client.get(job.key)).state is State.FAILED
    assert await client.requeue(job.key, {"to": "ada"}) is State.FAILED
    assert (await client.get(job.key)).variables == {"to": "ada"}
    with pytest.raises(WrongState, match="is pending: it cannot be requeued"):
        await client.requeue(job.key, {"to": "eve"})
    with pytest.raises(JobNotFound, match=f"Job '{NOBODY}' not found"):
        await client.requeue(NOBODY, {})
    assert (await client.get(job.key)).variables == {"to": "ada"}
    assert (await client.history(job.key))[-1].error == "arguments changed"


async def test_dead_letters_are_requeued_by_filter(client: Client) -> None:
    for type in ("a", "a", "b"):
        await client.fail(await a_job(client, type=type), "boom", final=True)
    assert await client.requeue_matching(type="a", error_text="boo") == (2, 2)
    assert sorted([job.type async for job in client.list(state="failed")]) == ["b"]
    for call in (client.requeue_matching(), client.requeue_matching(all=True, type="b")):
        with pytest.raises(InvalidInput, match=r"all: (must be true|cannot be combined with a filter)"):
            await call
    with pytest.raises(InvalidInput, match="error_text: must"):
        await client.requeue_matching(error_text="")
    assert await client.requeue_matching(all=True) == (1, 1)


async def test_retry_reject_release_and_throw_end_an_attempt_as_they_say(client: Client) -> None:
    retried, rejected, released, thrown = [await a_job(client) for _ in range(4)]
    await client.retry(retried, "later", delay=60)
    await client.reject(rejected, "nonsense")
    await client.release(released)
    await client.throw(thrown, "NO_MONEY", "poor", variables={"code": 1})
    seen = [await client.get(job.key) for job in (retried, rejected, released, thrown)]
    assert [job.state.label for job in seen] == ["pending", "failed", "pending", "failed"]
    assert [job.rejected for job in seen] == [False, True, False, False]
    assert [job.attempts for job in seen] == [1, 1, 0, 1]
    assert (seen[3].error_code, seen[3].last_error, seen[3].variables) == ("NO_MONEY", "poor", {"code": 1})


async def test_outcomes_of_a_batch_are_judged_each_by_itself(client: Client) -> None:
    job, gone = await a_job(client), await a_job(client)
    await client.release(gone)
    outcomes: list[Outcome] = [
        Complete(job.key, job.attempt, "1"),
        Failed(gone.key, gone.attempt, "x"),
        Release(NOBODY, 1),
    ]
    assert await client.settle(outcomes) == [
        Judged(Verdict.ACCEPTED, State.PROCESSING),
        Judged(Verdict.WRONG_STATE, State.PENDING),
        Judged(Verdict.NOT_FOUND, None),
    ]
    assert (await client.settle([Complete(job.key, job.attempt, "1")]))[0].verdict is Verdict.REPEATED


async def test_a_lease_is_extended(client: Client) -> None:
    job = await a_job(client)
    await client.extend(job, 3600)
    assert ((await client.get(job.key)).lease_until_ms or 0) > job.lease_until_ms + 3_000_000
    await client.extend(job.key, 60)
    await client.complete(job)
    with pytest.raises(WrongState):
        await client.extend(job.key, 60)


async def test_a_pending_job_can_be_moved_in_time_and_rank(client: Client) -> None:
    created = await client.create("email-send", delay=3600)
    moment = datetime.now(UTC) + timedelta(days=2)
    assert await client.reschedule(created.key, run_at=moment) is State.PENDING
    assert (await client.get(created.key)).run_at_ms == int(moment.timestamp() * 1000)
    assert (await client.explain(created.key)).reason is Reason.SCHEDULED
    await client.set_priority(created.key, 511)
    await client.run_now(str(created.key))
    [job] = await client.activate("email-send")
    assert (job.key, job.priority) == (created.key, 511)


async def test_retries_are_set(client: Client) -> None:
    created = await client.create("email-send", max_attempts=4)
    assert await client.set_retries(created.key, 9) == 4
    assert (await client.get(created.key)).retries == 9


async def test_a_cancelled_job_is_done_with_and_can_be_deleted(client: Client) -> None:
    created = await client.create("email-send")
    assert await client.cancel(created.key, "not needed") is State.PENDING
    with pytest.raises(JobFailed, match="cancelled: not needed"):
        await client.result(created.key)
    assert await client.delete(created.key) is State.CANCELLED
    with pytest.raises(JobNotFound):
        await client.get(created.key)


async def test_a_result_is_waited_for(client: Client) -> None:
    job = await a_job(client)
    waiting = asyncio.create_task(client.result(job.key, 30))
    await asyncio.sleep(0)
    await client.complete(job, [1, "two", None])
    assert await asyncio.wait_for(waiting, 45) == [1, "two", None]


async def test_a_result_that_does_not_come_in_time_is_an_error_that_says_so(client: Client) -> None:
    created = await client.create("never-asked-for")
    why = "no worker has polled for type 'never-asked-for' yet; start one"
    with pytest.raises(ResultTimeout, match=rf"^job '{created.key}' is still pending after 0.05 s: {why}$"):
        await client.result(created.key, 0.05)


async def test_a_timeout_tells_of_the_failed_attempt(client: Client) -> None:
    job = await a_job(client)
    await client.fail(job, "ValueError: bad address", backoff=3600)
    why = r"attempt 1 of 5 failed \(ValueError: bad address\), retrying at \d{4}-[-0-9T:.]+Z$"
    with pytest.raises(ResultTimeout, match=rf"^job '{job.key}' is still pending after 0.05 s: {why}"):
        await client.result(job.key, 0.05)
    await client.run_now(job.key)
    why = r"attempt 1 of 5 failed \(ValueError: bad address\); ready: waiting for a free worker"
    with pytest.raises(ResultTimeout, match=rf"^job '{job.key}' is still pending after 0.05 s: {why}"):
        await client.result(job.key, 0.05)


async def test_lists_show_every_match_once_newest_first(client: Client) -> None:
    created = await client.create_many([("a", {"n": n}) for n in range(620)])
    await client.create("b")
    assert [job.key async for job in client.list(type="a")] == [one.key for one in reversed(created)]
    page = await client.page(limit=2, type="a", state=["pending", State.PROCESSING])
    assert [job.key for job in page.jobs] == [created[-1].key, created[-2].key]
    assert (await client.page(page.next, limit=1, type="a")).jobs[0].key == created[-3].key
    assert [job.type async for job in client.list(created_after=datetime(2100, 1, 1, tzinfo=UTC))] == []
    assert len((await client.page(limit=1000, due=True)).jobs) == 621


async def test_filters_are_told_apart(client: Client) -> None:
    await client.create("a", {"to": "ann@example.org"}, correlation_id="c1", tenant="t1", dedupe_key="order-7")
    job = await a_job(client, type="b")
    assert [one.type async for one in client.list(correlation_id="c1")] == ["a"]
    assert [one.type async for one in client.list(tenants=["t1"])] == ["a"]
    assert [one.type async for one in client.list(dedupe_key="order-7")] == ["a"]
    assert [one.type async for one in client.list(variables_text='"to":"ann@')] == ["a"]
    assert [one.key async for one in client.list(worker="w1", group="")] == [job.key]


async def test_statistics_count_jobs_and_what_workers_did(client: Client) -> None:
    await client.complete(await a_job(client, type="counted"))
    await client.create("counted", tenant="acme")
    stats = await client.stats(1)
    assert sorted(
        (count.tenant, count.type, count.state.label, count.jobs) for count in stats.counts if count.jobs
    ) == [
        ("<default>", "counted", "completed", 1),
        ("acme", "counted", "pending", 1),
    ]
    assert [(row.worker, row.completed) for row in stats.hours if row.type == "counted"] == [("w1", 1)]
    assert stats.generated_at_ms > 0


async def test_statistics_that_are_too_large_for_a_message_say_that_something_is_missing() -> None:
    counts = [Count("t" * 250, f"{n:0250}", "", State.PENDING, n) for n in range(10_000)]
    sent = stats_message(Stats(counts, [], 1)).SerializeToString()
    heard = stats_of(StatsResponse.FromString(sent))
    assert (heard.partial, heard.counts[0]) == (True, counts[-1])
    assert not stats_of(stats_message(Stats(counts[:10], [], 1))).partial


async def test_an_explanation_says_why_a_job_does_not_run(client: Client) -> None:
    job = await a_job(client)
    explanation = await client.explain(job.key)
    assert (explanation.key, explanation.state, explanation.reason) == (job.key, State.PROCESSING, Reason.RUNNING)
    assert (explanation.worker, explanation.until_ms) == ("w1", job.lease_until_ms)


async def test_a_job_that_is_not_there_is_an_error_with_its_key(client: Client) -> None:
    calls = [client.get, client.history, client.explain, client.cancel, client.requeue, client.run_now, client.delete]
    for call in calls:
        if call == client.history:
            continue
        with pytest.raises(JobNotFound, match=f"Job '{NOBODY}' not found") as raised:
            await call(NOBODY)
        assert raised.value.key == NOBODY
    with pytest.raises(JobNotFound):
        await client.complete(NOBODY)


async def test_a_job_in_another_state_is_an_error_that_says_which(client: Client) -> None:
    created = await client.create("email-send")
    for call in (client.requeue, client.delete):
        with pytest.raises(WrongState, match=f"Job '{created.key}' is pending: it cannot be") as raised:
            await call(created.key)
        assert raised.value.key == created.key
    with pytest.raises(WrongState, match="cancel it instead"):
        await client.set_retries(created.key, 0)
    with pytest.raises(WrongState):
        await client.complete(created.key)


async def test_an_attempt_that_is_over_is_refused(client: Client) -> None:
    job = await a_job(client)
    await client.release(job)
    [again] = await client.activate("email-send", worker="w2")
    for end in (client.complete, client.reject, client.extend):
        with pytest.raises(LeaseLost) as raised:
            await end(job)
        assert raised.value.key == job.key
    await client.complete(again)


@pytest.mark.parametrize(
    ("verb", "arguments", "field"),
    [
        ("create", ("", {}), "type"),
        ("create", ("a", []), "variables"),
        ("create", ("a", {"x": float("nan")}), "variables"),
        ("get", ("x",), "key"),
        ("get", (0,), "key"),
        ("get", (2**63,), "key"),
        ("complete", (1, object()), "result"),
        ("set_retries", (1, 101), "retries"),
        ("set_retries", (1, -1), "retries"),
        ("set_priority", (1, 512), "priority"),
        ("cancel", (1, "\0"), "reason"),
        ("cancel", (1, "\ud800"), "reason"),
        ("stats", (0,), "hours"),
        ("stats", (721,), "hours"),
        ("extend", (1, 0), "lease"),
        ("extend", (1, 1e9), "lease"),
        ("throw", (1, ""), "code"),
        ("activate", ("",), "type"),
        ("page", (-1,), "cursor"),
        ("result", (1, -1), "wait"),
    ],
)
async def test_a_wrong_value_is_named_before_it_goes_anywhere(
    verb: str, arguments: tuple[Any, ...], field: str
) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidInput) as raised:
            await getattr(client, verb)(*arguments)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("verb", "arguments", "options", "field"),
    [
        ("create", ("a",), {"prority": 1}, "prority"),
        ("create", ("a",), {"delay": -1}, "delay"),
        ("activate", ("a",), {"limit": 0}, "limit"),
        ("activate", ("a",), {"limit": 1001}, "limit"),
        ("activate", ("a",), {"worker": "\n"}, "worker"),
        ("fail", (1, "x"), {"retries": 101}, "retries"),
        ("fail", (1, "x"), {"backoff": -1}, "backoff"),
        ("retry", (1, "x"), {"delay": float("inf")}, "delay"),
        ("complete", (1,), {"attempt": -1}, "attempt"),
        ("reschedule", (1,), {}, "run_at"),
        ("reschedule", (1,), {"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001 - that is the mistake
        ("page", (), {"limit": 1001}, "limit"),
        ("page", (), {"state": "odd"}, "state"),
        ("page", (), {"colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_option_is_named_before_it_goes_anywhere(
    verb: str, arguments: tuple[Any, ...], options: dict[str, Any], field: str
) -> None:
    async with Client(NOWHERE) as client:
        with pytest.raises(InvalidInput) as raised:
            await getattr(client, verb)(*arguments, **options)
    assert raised.value.field == field


async def test_handlers_work_off_a_queue(client: Client) -> None:
    created = await client.create_many([("double", {"n": n}) for n in range(50)])
    stop = asyncio.Event()

    async def double(job: Any) -> int:
        n: int = job.variables["n"]
        if n % 2:
            await asyncio.sleep(0)
        return 2 * n

    working = asyncio.create_task(client.work({"double": double}, concurrency=4, worker="w1", stop=stop))
    assert [await client.result(one.key) for one in created] == [2 * n for n in range(50)]
    stop.set()
    await asyncio.wait_for(working, 45)


async def test_the_sync_client_has_the_same_verbs_with_the_same_parameters() -> None:
    import inspect  # noqa: PLC0415

    verbs = {name for name in vars(Client) if not name.startswith("_")} - {"stream"}
    assert verbs <= set(vars(SyncClient))
    for name in verbs - {"list", "work"}:
        assert list(inspect.signature(getattr(Client, name)).parameters) == list(
            inspect.signature(getattr(SyncClient, name)).parameters
        ), name


async def a_job(client: Client, *, type: str = "email-send", variables: dict[str, Any] | None = None) -> Any:
    """A job that worker w1 holds."""
    created = await client.create(type, variables)
    [job] = await client.activate(type, worker="w1")
    assert job.key == created.key
    return job
