"""Job functions, their options and handles: how callers enqueue, and what they hold afterwards."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import AfterValidator, BeforeValidator

from everwork import Everwork, JobContext, JobFunction, JobHandle, RetryPolicy, State, SyncJobHandle
from everwork.exceptions import BadConfiguration, Fail, InvalidInput, JobCancelled, JobFailed, ResultTimeout
from tests.app.waiting import until, working

Send = JobFunction[..., Any, ..., Any]


@pytest.fixture
def send(app: Everwork) -> Send:
    """A function that returns what it was called with."""

    @app.job("email-send")
    async def send(ctx: JobContext, to: str, copies: int = 1, *, urgent: bool = False) -> list[Any]:
        return [to, copies, urgent]

    return send


@pytest.mark.every_engine
async def test_a_handle_is_the_key_and_does_what_the_application_does(app: Everwork, send: Send) -> None:
    handle = await send.using(delay=60).enqueue("ada")
    assert isinstance(handle, JobHandle)
    assert (int(handle), str(handle), repr(handle)) == (handle, f"{handle:d}", f"<JobHandle {handle:d}>")
    assert (await handle.explain()).reason.value == "scheduled"
    assert (await handle.get()).key == handle
    with pytest.raises(ResultTimeout, match=rf"^job '{handle}' is still pending after 0 s: scheduled to start at "):
        await handle.result(timeout=0)
    await handle.cancel("not needed")
    assert [entry.kind for entry in await handle.history()] == ["cancel"]
    with pytest.raises(JobCancelled, match="not needed") as caught:
        await handle.result()
    assert (caught.value.state, caught.value.error, caught.value.key) == ("cancelled", "not needed", handle)


@pytest.mark.every_engine
async def test_a_timeout_tells_of_the_failed_attempt_and_of_its_retry(app: Everwork) -> None:
    @app.job("email-send", retry=RetryPolicy(base=3600))
    async def send() -> None:
        raise ValueError("bad address\n" + "x" * 1000)

    handle = await send.enqueue()
    async with working(app):
        await until(handle.history)
    why = r"attempt 1 of 5 failed \(ValueError: bad address x{170,190}…\), retrying at \d{4}-[-0-9T:.]+Z$"
    with pytest.raises(ResultTimeout, match=rf"^job '{handle}' is still pending after 0 s: {why}"):
        await handle.result(timeout=0)


@pytest.mark.every_engine
async def test_a_failed_job_says_so_and_can_be_requeued_by_its_handle(app: Everwork) -> None:
    broken = [True]

    @app.job("pay")
    def pay(amount: int) -> int:
        if broken.pop() if broken else False:
            raise Fail("the card was refused")
        return amount

    async with working(app):
        handle = await pay.enqueue(5)
        with pytest.raises(JobFailed, match="the card was refused") as caught:
            await handle.result()
        assert (caught.value.state, caught.value.error) == ("failed", "the card was refused")
        await handle.requeue()
        assert await handle.result() == 5


@pytest.mark.every_engine
async def test_a_job_that_does_not_fit_its_handler_any_more_is_requeued_with_other_arguments(app: Everwork) -> None:
    handle = await app.enqueue("pay", amount="9.90")  # By an earlier version of the program.

    @app.job("pay")
    def pay(amount: Decimal, to: UUID) -> str:
        return f"{amount} to {to.int}"

    async with working(app):
        with pytest.raises(JobFailed, match="to: the handler needs this argument"):
            await handle.result()
        refused = [
            ({"amount": "much", "to": UUID(int=7)}, "amount: Input should be a valid decimal, not 'much'"),
            ({"amount": 1}, "to: the handler needs this argument"),
            ({"amount": 1, "whom": 2}, "whom: the handler has no such argument; it takes 'amount', 'to'"),
            ("much", "arguments: must be a JSON object, not 'much'"),
        ]
        for bad, problem in refused:
            with pytest.raises(InvalidInput, match=re.escape(problem)):
                await handle.requeue(bad)  # type: ignore[arg-type]
        assert (await handle.get()).state is State.FAILED
        await handle.requeue({"amount": Decimal("9.90"), "to": UUID(int=7)})
        assert await handle.result() == "9.90 to 7"
    assert (await handle.get()).variables == {"amount": "9.90", "to": str(UUID(int=7))}


async def test_arguments_of_a_type_that_is_declared_elsewhere_are_taken_as_they_are(app: Everwork) -> None:
    @app.job("pay")
    def pay(amount: int) -> None:
        raise Fail("no money")

    async with working(app):
        handle = await pay.enqueue(1)
        with pytest.raises(JobFailed):
            await handle.result()
    del app.functions["pay"]
    await asyncio.to_thread(handle.sync.requeue, {"due": datetime(2030, 1, 2, tzinfo=UTC)})
    assert (await handle.get()).variables == {"due": "2030-01-02T00:00:00+00:00"}


async def test_arguments_go_by_position_and_by_name(app: Everwork, send: Send) -> None:
    async with working(app):
        assert await (await send.enqueue("ada", 2, urgent=True)).result() == ["ada", 2, True]
        assert await (await send.enqueue("ada", copies=3)).result() == ["ada", 3, False]
        assert await (await app.enqueue(send, "bob")).result() == ["bob", 1, False]
        assert await (await app.using(priority=3).enqueue(send.using(tenant="acme"), to="bob")).result() == [
            "bob",
            1,
            False,
        ]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("ada", 1, True), {}, r"arguments: must be at most 2 by position \(to, copies\), not 3"),
    (("ada",), {"to": "bob"}, "to: is passed twice: by position and by name"),
    ((), {}, "to: the handler needs this argument"),
    (
        (),
        {"to": "ada", "delay": 5},
        r"delay: is an option of the job, not an argument of 'email-send': write send\.using\(delay=",
    ),
    (
        (),
        {"to": "ada", "countdown": 5},
        r"countdown: is an option of the job, not an argument of 'email-send': write send\.using\(delay=",
    ),
    ((), {"to": "ada", "ctx": 5}, "ctx: the handler has no such argument; it takes 'to', 'copies', 'urgent'"),
    (("ada",), {"copies": "many"}, "copies: Input should be a valid integer"),
]


@pytest.mark.parametrize(("given", "named", "problem"), WRONG)
async def test_a_wrong_call_is_refused_by_name(
    app: Everwork, send: Send, given: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{problem}"):
        await send.enqueue(*given, **named)
    with pytest.raises(InvalidInput, match=f"^{problem}"):
        await app.enqueue(send, *given, **named)
    with pytest.raises(InvalidInput, match=f"^{problem}"):
        send.call(*given, **named)


async def test_options_among_the_arguments_of_a_type_are_refused_with_the_right_spelling(app: Everwork) -> None:
    with pytest.raises(
        InvalidInput, match=r"^delay: is an option .*: write app\.using\(delay=\.\.\.\)\.enqueue\('elsewhere', "
    ):
        await app.enqueue("elsewhere", to="ada", delay=5)
    job = await (await app.enqueue("elsewhere", {"delay": 5}, to="ada")).get()
    assert job.variables == {"delay": 5, "to": "ada"}


async def test_an_unknown_or_wrong_option_is_refused_where_it_is_given(app: Everwork, send: Send) -> None:
    with pytest.raises(InvalidInput, match=r"^dely: is not a job option; allowed: correlation_id, dedupe_key, "):
        send.using(dely=5)  # type: ignore[call-arg]
    for using in (send.using, send.sync.using, app.using, app.sync.using):
        with pytest.raises(InvalidInput, match=r"^priority: must be a whole number"):
            using(priority="high")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^delay: cannot be combined with run_at"):
        send.using(delay=5).using(run_at=datetime.now(UTC))


async def test_no_transaction_is_no_transaction_to_be_within(app: Everwork, send: Send) -> None:
    for within in (send.within, send.sync.within, app.within, app.sync.within):
        with pytest.raises(InvalidInput, match=r"^tx: must be a connection or session, not None$"):
            within(None)


async def test_options_add_up_and_the_last_counts(app: Everwork, send: Send) -> None:
    job = await (await send.using(priority=3, tenant="acme").using(priority=5).enqueue("ada")).get()
    assert (job.priority, job.tenant) == (5, "acme")


@pytest.mark.every_engine
async def test_calls_are_created_together_with_the_types_of_their_results(app: Everwork, send: Send) -> None:
    handles = await app.enqueue_many([send.call("a"), send.using(priority=7).call("b"), ("elsewhere", {"to": "c"})])
    assert [(await one.get()).priority for one in handles] == [0, 7, 0]
    with pytest.raises(InvalidInput, match=r"^jobs\[0\]\.delay: must be set for each call"):
        await app.using(delay=5).enqueue_many([send.call("a")])
    with pytest.raises(InvalidInput, match=r"^tx: applies to the whole batch"):
        send.using(tx=object()).call("a")


async def test_an_error_of_a_users_validator_is_not_taken_for_a_wrong_call(app: Everwork) -> None:
    def counted(value: Any) -> int:
        return len(value)  # A mistake: it may be a number.

    amount = Annotated[int, BeforeValidator(counted)]

    def pay(amount: int) -> None: ...

    pay.__annotations__ = {"amount": amount}
    app.job("pay")(pay)
    with pytest.raises(TypeError, match="has no len"):
        await app.enqueue_many([("pay", {"amount": 5})])
    mistakes: list[Any] = [5, ("pay",), ("pay", {}, {}), "pay"]
    for wrong in mistakes:
        with pytest.raises(InvalidInput, match=r"^jobs\[0\]: must be a call, such as send\.call\(...\), or a pair"):
            await app.enqueue_many([wrong])


async def test_the_blocking_twin(app: Everwork, send: Send) -> None:
    def program() -> list[Any]:
        handle = send.using(priority=3).sync.enqueue("ada", urgent=True)
        assert isinstance(handle, SyncJobHandle)
        assert (handle.get().priority, len(handle.explain().text) > 0) == (3, True)
        many = app.sync.enqueue_many([send.using(delay=60).call("x")])
        many[0].cancel("no")
        assert [job.key for job in app.sync.list(state="cancelled")] == many
        result: list[Any] = handle.result(timeout=30)
        return result

    async with working(app):
        assert await asyncio.to_thread(program) == ["ada", 1, True]


async def test_the_blocking_twin_runs_validators_in_the_callers_thread_and_not_in_the_engines(app: Everwork) -> None:
    threads: set[str] = set()

    def noted(value: int) -> int:
        threads.add(threading.current_thread().name)
        return value

    amount = Annotated[int, AfterValidator(noted)]

    def pay(amount: int) -> int:
        if amount == 5:
            raise Fail("the card was refused")
        return amount

    pay.__annotations__ = {"amount": amount, "return": amount}
    declared = app.job("pay")(pay)

    def program() -> int:
        handle = declared.sync.enqueue(5)
        with pytest.raises(JobFailed):
            handle.result(timeout=30)
        handle.requeue({"amount": 6})
        return handle.result(timeout=30)

    async with working(app):
        assert await asyncio.to_thread(program) == 6
    assert len(threads) > 1
    assert "everwork-engine" not in threads


@pytest.mark.every_engine
async def test_jobs_are_listed_by_page_and_by_iteration(app: Everwork) -> None:
    keys = await app.enqueue_many([("a", {"n": n}) for n in range(3)] + [("b", {})])
    assert [job.key async for job in app.list(type="a")] == keys[:3][::-1]
    page = await app.page(limit=2)
    assert [job.key for job in page.jobs] == [keys[3], keys[2]]
    assert [job.variables for job in (await app.page(page.next)).jobs] == [{"n": 1}, {"n": 0}]
    with pytest.raises(InvalidInput, match=r"^colour: unknown filter; allowed: "):
        await app.page(colour="red")  # type: ignore[call-arg]
    assert (await app.page(state=State.FAILED)).jobs == []
    assert len((await app.page(state=None, tenants=None)).jobs) == 4
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (None, {"state": 5}, "state: must be one value or a list of values, not 5"),
        (None, {"tenants": 5}, "tenants: must be one value or a list of values, not 5"),
        (None, {"due": "no"}, "due: must be True or False, not 'no'"),
        ("x", {}, "cursor: must be a whole number from 1 to "),
    ]
    for cursor, filters, problem in wrong:
        with pytest.raises(InvalidInput, match=f"^{problem}"):
            await app.page(cursor, **filters)


# Declarations that say what to write instead -------------------------------------------------------


def test_a_decorator_without_a_type_says_what_to_write(app: Everwork) -> None:
    with pytest.raises(
        BadConfiguration, match=r'^@app\.job must name the type of its jobs: write @app\.job\("send"\)$'
    ):

        @app.job  # type: ignore[arg-type]
        def send() -> None: ...


def test_the_words_of_other_queues_lead_to_ours(send: Send) -> None:
    with pytest.raises(
        AttributeError, match=r"^a job function has no attribute 'apply_async': write await send\.using\(delay="
    ):
        _ = send.apply_async  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'delay': write await send\.enqueue\(\.\.\.\), or send\.sync\.enqueue"):
        _ = send.delay  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=r"^eta: is not a job option; use run_at$"):
        send.using(eta=5)  # type: ignore[call-arg]
    assert not hasattr(send, "colour")


async def test_what_other_queues_ask_of_a_result_or_an_application_leads_to_ours(app: Everwork, send: Send) -> None:
    handle = await send.enqueue("ada")
    with pytest.raises(AttributeError, match=r"'status': write \(await handle\.get\(\)\)\.state$"):
        _ = handle.status  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'id': a handle is the key itself, an int$"):
        _ = handle.id  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'task': write @app\.job\(\"type\"\)$"):
        _ = app.task  # type: ignore[attr-defined]
    assert not hasattr(handle, "colour")
    assert not hasattr(app, "colour")


async def test_the_handle_of_a_key_reads_the_result_as_the_function_returns_it(app: Everwork) -> None:
    @app.job("price")
    def price(of: int) -> Decimal:
        return Decimal(of) / 4

    key = int(await price.enqueue(9))
    async with working(app):
        assert await price.handle(key).result() == Decimal("2.25")
    assert await asyncio.to_thread(lambda: price.sync.handle(key).result()) == Decimal("2.25")
    with pytest.raises(InvalidInput, match=r"^key: must be a job key"):
        price.handle(0)


def test_a_method_is_refused_at_its_declaration(app: Everwork) -> None:
    with pytest.raises(
        BadConfiguration, match=r"^'send' is a method: @app.job takes a function; for a class, use AbstractWorker"
    ):

        class Mailer:
            @app.job("email-send")
            def send(self, to: str) -> None: ...

    assert app.functions == {}


async def test_an_optional_context_is_filled(app: Everwork) -> None:
    @app.job("where")
    async def where(n: int, ctx: JobContext | None = None) -> bool:
        return ctx is not None

    async with working(app):
        assert await (await where.enqueue(1)).result()
    assert not await where(1)
