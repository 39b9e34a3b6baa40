"""enqueue and enqueue_many: what is asked for is what is kept, and wrong wishes create nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from everwork import Everwork, JobKey, RetryPolicy, State
from everwork.core.queries import JobFilter
from everwork.exceptions import InvalidInput
from tests.stores import SECOND_MS, START_MS, VirtualClock

LATER = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone(timedelta(hours=2)))
LATER_MS = 1_893_546_245_678


async def jobs_in(app: Everwork) -> int:
    """How many jobs the store holds."""
    await app.open()
    return len((await app._host.call(lambda service: service.find(JobFilter(), 1_000))).jobs)


async def test_enqueue_creates_a_pending_job_and_answers_its_key(app: Everwork) -> None:
    key = await app.enqueue("email-send", to="a@b.c", copies=2)
    job = await app.get(key)
    assert isinstance(key, JobKey)
    assert (job.key, job.type, job.state) == (key, "email-send", State.PENDING)
    assert job.variables == {"to": "a@b.c", "copies": 2}


async def test_a_job_without_options_is_due_at_once_and_has_five_attempts(app: Everwork) -> None:
    job = await app.get(await app.enqueue("email-send"))
    assert (job.run_at_ms, job.created_at_ms, job.max_attempts, job.retries) == (START_MS, START_MS, 5, 5)
    assert (job.tenant, job.priority, job.variables) == ("<default>", 0, {})


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("option", "value", "field", "kept"),
    [
        ("delay", 60, "run_at_ms", START_MS + 60 * SECOND_MS),
        ("delay", 0.25, "run_at_ms", START_MS + 250),
        ("run_at", LATER, "run_at_ms", LATER_MS),
        ("priority", 7, "priority", 7),
        ("priority", -512, "priority", -512),
        ("tenant", "acme", "tenant", "acme"),
        ("dedupe_key", "welcome:42", "dedupe_key", "welcome:42"),
        ("limit_key", "customer-1", "limit_key", "customer-1"),
        ("correlation_id", "order-1", "correlation_id", "order-1"),
        ("expires_at", LATER, "expires_at_ms", LATER_MS),
        ("timeout", 1.5, "timeout_ms", 1_500),
        ("headers", {"trace": "1"}, "headers", {"trace": "1"}),
        ("max_attempts", 3, "max_attempts", 3),
        ("retry", RetryPolicy(max_attempts=9), "max_attempts", 9),
    ],
)
async def test_an_option_is_kept_with_the_job_and_is_no_argument(
    app: Everwork, option: str, value: Any, field: str, kept: object
) -> None:
    job = await app.get(await app.using(**{option: value}).enqueue("email-send"))
    assert getattr(job, field) == kept
    assert job.variables == {}


async def test_variables_pass_arguments_whose_names_are_options(app: Everwork) -> None:
    key = await app.using(priority=3).enqueue("email-send", {"priority": "high", "delay": 1}, to="a@b.c")
    job = await app.get(key)
    assert (job.variables, job.priority) == ({"priority": "high", "delay": 1, "to": "a@b.c"}, 3)


@pytest.mark.every_engine
async def test_the_same_dedupe_key_answers_the_first_job_and_says_so(app: Everwork) -> None:
    first = await app.using(dedupe_key="welcome:42").enqueue("email-send")
    again = await app.using(dedupe_key="welcome:42").enqueue("email-send")
    assert (again, first.deduplicated, again.deduplicated) == (first, False, True)
    assert await jobs_in(app) == 1


async def test_the_same_dedupe_key_of_another_tenant_is_another_job(app: Everwork) -> None:
    first = await app.using(dedupe_key="welcome:42", tenant="acme").enqueue("email-send")
    other = await app.using(dedupe_key="welcome:42", tenant="blue").enqueue("email-send")
    assert first != other
    assert not other.deduplicated


@pytest.mark.every_engine
async def test_enqueue_many_creates_all_in_their_order(app: Everwork) -> None:
    keys = await app.enqueue_many([("email-send", {"to": "a"}), app.using(priority=2).call("sms-send", to="b")])
    jobs = [await app.get(key) for key in keys]
    assert [(job.type, job.variables, job.priority) for job in jobs] == [
        ("email-send", {"to": "a"}, 0),
        ("sms-send", {"to": "b"}, 2),
    ]


async def test_enqueue_many_says_which_were_deduplicated(app: Everwork) -> None:
    keys = await app.enqueue_many([app.using(dedupe_key=key).call("email-send") for key in ("a", "a", "b")])
    assert [key.deduplicated for key in keys] == [False, True, False]


async def test_enqueue_many_of_nothing_answers_nothing(app: Everwork) -> None:
    assert await app.enqueue_many([]) == []


async def test_one_wrong_job_of_many_is_named_by_its_place_and_nothing_is_created(app: Everwork) -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[1\]\.priority: is an option of the job, not an argument"):
        await app.enqueue_many([("email-send", {}), ("email-send", {"priority": "high"}), ("email-send", {})])
    assert await jobs_in(app) == 0


@pytest.mark.parametrize("item", ["email-send", ("email-send",), ("email-send", {}, {}), ("email-send", 5), None, 5])
async def test_what_is_no_pair_is_named_by_its_place(app: Everwork, item: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^jobs\[1\](: must be a call, such as|\.arguments: must be a JSON object)"):
        await app.enqueue_many([("email-send", {}), item])
    assert await jobs_in(app) == 0


async def test_enqueue_many_leaves_the_callers_arguments_as_they_were(app: Everwork) -> None:
    arguments = {"to": "a", "when": datetime(2026, 1, 1, tzinfo=UTC)}
    before = dict(arguments)
    await app.enqueue_many([("email-send", arguments)])
    assert arguments == before


async def test_more_than_ten_thousand_jobs_in_one_call_are_refused(app: Everwork) -> None:
    with pytest.raises(InvalidInput, match="jobs: must be at most 10,000"):
        await app.enqueue_many([("email-send", {})] * 10_001)
    assert await jobs_in(app) == 0


async def test_run_at_in_the_past_is_due_now(app: Everwork) -> None:
    key = await app.using(run_at=datetime(2001, 1, 1, tzinfo=UTC)).enqueue("email-send")
    assert (await app.explain(key)).reason.value == "not asked"


async def test_a_job_type_that_nobody_handles_here_takes_any_argument(app: Everwork) -> None:
    key = await app.enqueue("elsewhere", anything=[1, {"deep": None}])
    assert (await app.get(key)).variables == {"anything": [1, {"deep": None}]}


async def test_a_function_that_is_no_job_is_refused(app: Everwork) -> None:
    async def send() -> None: ...

    with pytest.raises(
        InvalidInput, match=r"^type: must be a type or a function declared with @app\.job, not <function "
    ):
        await app.enqueue(send)  # type: ignore[call-overload]


async def test_a_scheduled_job_is_explained_as_scheduled(app: Everwork, clock: VirtualClock) -> None:
    explanation = await app.explain(await app.using(delay=60).enqueue("email-send"))
    assert (explanation.reason.value, explanation.until_ms) == ("scheduled", clock() + 60 * SECOND_MS)
