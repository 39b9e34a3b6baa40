"""Middleware: users' own code around each call, and failures on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everwork import Call, ErrorRule, Event, EventCollector, Everwork, Middleware, RetryPolicy, State
from everwork.core.queries import JobFilter
from everwork.exceptions import BadConfiguration, Fail, InvalidInput
from everwork.runtime.middleware import Proceed
from everwork.testing import FailEveryNth, FailTypes, SimulatedFailure
from tests.app.waiting import finished, run_one, working
from tests.stores import VirtualClock, url_of

AT_ONCE = RetryPolicy(max_attempts=3, base=0.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One engine will do: none knows of middleware."""
    return url_of("sqlite", tmp_path)


class Around(Middleware):
    """Notes when it is entered and left."""

    def __init__(self, name: str, steps: list[Any]) -> None:
        self._name = name
        self._steps = steps

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Note, call, note."""
        self._steps.append(f"{self._name} in")
        try:
            return await proceed(call)
        finally:
            self._steps.append(f"{self._name} out")


class Doing(Middleware):
    """Does what a test says."""

    def __init__(self, act: Callable[[Call, Proceed], Any]) -> None:
        self._act = act

    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        """Do it."""
        return await self._act(call, proceed)


async def test_the_applications_middleware_stands_around_the_functions_and_the_first_outermost(
    url: str, clock: VirtualClock
) -> None:
    steps: list[Any] = []
    app = Everwork(url, clock=clock, middleware=[Around("a", steps), Around("b", steps)])

    @app.job("plain", middleware=[Around("c", steps)])
    def plain() -> None:
        steps.append(threading.current_thread().name.startswith("everwork-handler-"))

    async with app:
        await run_one(app, "plain")
    assert steps == ["a in", "b in", "c in", True, "c out", "b out", "a out"]


async def test_a_middleware_sees_the_call_changes_its_arguments_and_its_result(app: Everwork) -> None:
    seen: list[Call] = []

    async def double(call: Call, proceed: Proceed) -> Any:
        seen.append(call)
        return [await proceed(replace(call, arguments={"number": str(2 * call.arguments["number"])}))]

    @app.job("count", middleware=[Doing(double)])
    async def count(number: int) -> int:
        return number + 1

    job = await run_one(
        app, "count", number=20, using={"headers": {"trace": "t1"}, "correlation_id": "order-7", "tenant": "acme"}
    )
    assert await app.result(job.key) == [41]
    [call] = seen
    assert (call.key, call.type, call.tenant, call.attempt, call.attempts) == (job.key, "count", "acme", 1, 1)
    assert (call.arguments, call.headers, call.correlation_id) == ({"number": 20}, {"trace": "t1"}, "order-7")


async def test_what_a_middleware_raises_or_returns_instead_of_calling_counts_as_the_handlers(app: Everwork) -> None:
    async def refuse(_call: Call, _proceed: Proceed) -> Any:
        raise Fail("not today")

    async def answer(call: Call, _proceed: Proceed) -> Any:
        return f"cached {call.arguments['number']}"

    async def never(number: int) -> None:
        raise AssertionError(f"called with {number}")

    app.job("refused", middleware=[Doing(refuse)])(never)
    app.job("answered", middleware=[Doing(answer)])(never)
    refused, answered = await run_one(app, "refused", number=1), await run_one(app, "answered", number=2)
    assert (refused.state, refused.last_error) == (State.FAILED, "not today")
    assert (answered.state, answered.result) == (State.COMPLETED, "cached 2")


async def test_arguments_that_do_not_fit_are_a_permanent_failure_also_through_middleware(app: Everwork) -> None:
    key = await app.enqueue("count", number="many")  # Before the handler is known.

    @app.job("count", retry=AT_ONCE, middleware=[Middleware()])
    async def count(number: int) -> None: ...

    async with working(app):
        job = await finished(app, key)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert str(job.last_error).startswith("argument number: ")


async def test_a_call_may_be_made_again_or_forgiven_and_only_one_that_succeeded_publishes_its_events(
    app: Everwork,
) -> None:
    calls: list[int] = []

    async def insist(call: Call, proceed: Proceed) -> Any:
        for _ in range(2):
            with suppress(ConnectionError):
                return await proceed(call)
        return "forgiven"

    @app.job("tell", middleware=[Doing(insist)])
    async def tell(events: EventCollector) -> str:
        calls.append(len(calls))
        events.emit(Event(source="told", kwargs={"at": calls[-1]}))
        if calls[-1] != 1:
            raise ConnectionError("no answer")
        return "told"

    jobs = [await run_one(app, "tell"), await run_one(app, "tell")]
    emitted = await app._host.call(lambda service: service.find(JobFilter(type="told"), 10))
    assert [(job.attempts, job.result) for job in jobs] == [(1, "told"), (1, "forgiven")]
    assert [job.variables for job in emitted.jobs] == ['{"at":1}']


async def test_events_of_a_call_that_succeeded_are_published_though_a_later_one_failed(app: Everwork) -> None:
    calls: list[int] = []

    async def twice(call: Call, proceed: Proceed) -> Any:
        first = await proceed(call)
        with suppress(ConnectionError):
            await proceed(call)
        return first

    @app.job("tell", middleware=[Doing(twice)])
    def tell(events: EventCollector) -> int:
        calls.append(len(calls))
        events.emit(Event(source="told", kwargs={"at": calls[-1]}))
        if calls[-1] == 1:
            raise ConnectionError("no answer")
        return calls[-1]

    job = await run_one(app, "tell")
    emitted = await app._host.call(lambda service: service.find(JobFilter(type="told"), 10))
    assert (job.result, [job.variables for job in emitted.jobs]) == (0, ['{"at":0}'])


async def test_every_handler_sees_the_context_variables_that_a_middleware_has_set(app: Everwork) -> None:
    tenant = ContextVar("tenant", default="nobody")

    async def enter(call: Call, proceed: Proceed) -> Any:
        tenant.set(call.tenant)
        return await proceed(call)

    async def in_loop() -> str:
        return tenant.get()

    def in_thread() -> str:
        return tenant.get()

    def collecting(events: EventCollector) -> str:
        return tenant.get()

    seen = []
    for handler in (in_loop, in_thread, collecting):
        app.job(handler.__name__, middleware=[Doing(enter)])(handler)
        seen.append((await run_one(app, handler.__name__, using={"tenant": "acme"})).result)
    assert seen == ["acme"] * 3


async def test_every_nth_call_fails_on_purpose_and_says_so(app: Everwork) -> None:
    @app.job("work", retry=AT_ONCE, middleware=[FailEveryNth(2)])
    async def work() -> None: ...

    first, second = await run_one(app, "work"), await run_one(app, "work")
    assert (first.attempts, second.attempts) == (1, 2)
    [failure, _] = await app.history(second.key)
    assert failure.error == "SimulatedFailure: injected failure: call 2, one in 2 fails"


async def test_calls_of_named_types_fail_on_purpose(url: str, clock: VirtualClock) -> None:
    faults = FailTypes({"twice": 2, "always": Fail("the card was declined")})
    app = Everwork(url, clock=clock, middleware=[faults, FailTypes({"of a set"})])
    types = ("twice", "always", "never", "of a set")
    for type in types:
        app.job(type, retry=AT_ONCE)(lambda: "done")
    async with app:
        jobs = [await run_one(app, type) for type in types]
    assert [(job.state, job.attempts) for job in jobs] == [
        (State.COMPLETED, 3),
        (State.FAILED, 1),
        (State.COMPLETED, 1),
        (State.FAILED, 3),
    ]
    assert jobs[1].last_error == "the card was declined"
    assert jobs[3].last_error == "SimulatedFailure: injected failure: every call of 'of a set' fails"


async def test_faults_are_counted_exactly_by_many_threads() -> None:
    failing, failed, together = FailEveryNth(3, ConnectionError), [], threading.Barrier(3)

    def call_often() -> None:
        together.wait()
        for _ in range(1_000):
            called = failing.__call__(None, _nothing)  # type: ignore[arg-type]
            try:
                called.send(None)
            except ConnectionError:
                failed.append(1)
            except StopIteration:
                pass

    threads = [threading.Thread(target=call_often) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 1_000


async def _nothing(_call: Call) -> None:
    """A call that does nothing."""


def test_bad_middleware_and_faults_are_refused_by_name(tmp_path: Any) -> None:
    class Plain(Middleware):
        def __call__(self, call: Call, proceed: Proceed) -> Any: ...

    app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    for wrong, problem in (
        ([Around], r"middleware\[0\]: must be an instance of a subclass of Middleware, not"),
        ([Middleware(), Plain()], r"middleware\[1\]: Plain.__call__ must be an async function"),
        (Middleware(), "middleware: must be a list of middleware"),
    ):
        with pytest.raises(BadConfiguration, match=problem):
            app.job("work", middleware=wrong)(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="n: must be a whole number from 1"):
        FailEveryNth(0)
    with pytest.raises(InvalidInput, match=r"types\['work'\]: must be an exception or an exception class, not"):
        FailTypes({"work": "always"})
    with pytest.raises(InvalidInput, match=r"types\['work'\]: must be an exception instance: UnicodeDecodeError needs"):
        FailTypes({"work": UnicodeDecodeError})
    for wrong_error in (UnicodeDecodeError, KeyboardInterrupt, KeyboardInterrupt()):
        with pytest.raises(InvalidInput, match="error: must be an exception"):
            FailEveryNth(2, wrong_error)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="types: must be a set of types, or a mapping"):
        FailTypes("work")


def test_a_stored_error_rule_names_a_simulated_failure_as_users_import_it() -> None:
    assert ErrorRule("permanent", exception=SimulatedFailure).exception == "everwork.testing.SimulatedFailure"
