"""Dependencies of handlers: every kind, nested, cached, refused at declaration, replaced in tests."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import fastapi
import pytest

from everwork import AbstractWorker, Depends, Everwork, JobContext, State, WorkerSettings
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.testing import rehearse
from tests.app.waiting import finished, until, working
from tests.stores import VirtualClock, url_of

if TYPE_CHECKING:
    from decimal import Decimal


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One engine will do: none knows of dependencies."""
    return url_of("sqlite", tmp_path)


class Session:
    """What handlers depend on."""


def function() -> Session:
    return Session()


async def coroutine() -> Session:
    return Session()


def generator() -> Iterator[Session]:
    yield Session()


async def async_generator() -> AsyncIterator[Session]:
    yield Session()


@contextmanager
def manager() -> Iterator[Session]:
    yield Session()


@asynccontextmanager
async def async_manager() -> AsyncIterator[Session]:
    yield Session()


class Factory:
    """An object with an async `__call__`."""

    async def __call__(self) -> Session:
        """Make one."""
        return Session()


KINDS: list[Callable[..., Any]] = [
    function, coroutine, generator, async_generator, manager, async_manager, Session, partial(function), Factory(),
    lambda *_: coroutine(), lambda *_: async_generator(), lambda *_: async_manager(), lambda *_: generator(),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_dependency_fills_a_parameter_of_async_and_plain_handlers(
    app: Everwork, kind: Callable[..., Any]
) -> None:
    got: list[object] = []

    @app.job("async")
    async def handle(number: int, one: Any = Depends(kind)) -> None:
        got.append(one)

    @app.job("plain")
    def handle_plain(number: int, one: Any = Depends(kind)) -> None:
        got.append(one)

    async with rehearse(app) as stage:
        await app.enqueue("async", number=1)
        await app.enqueue("plain", number=1)
        await stage.drain(raise_errors=True)
    assert [type(one) for one in got] == [Session, Session]


async def test_an_annotated_dependency_needs_no_default(app: Everwork) -> None:
    got: list[object] = []

    @app.job("a")
    async def handle(one: Annotated[Session, Depends(generator)], ctx: JobContext) -> None:
        got.append(one)

    async with rehearse(app) as stage:
        await app.enqueue("a")
        await stage.drain(raise_errors=True)
    assert isinstance(got[0], Session)


opened: list[str] = []


def base(ctx: JobContext, size: int = 3) -> Iterator[Session]:
    opened.append(f"{ctx.type} {ctx.attempt} {size}")
    yield Session()


async def left(one: Session = Depends(base), ctx: JobContext | None = None) -> Session:
    assert ctx is not None
    return one


class Right:
    """Needs one thing in two ways."""

    def __init__(self, one: Annotated[Session, Depends(base)], left: Session = Depends(left)) -> None:
        self.is_shared = one is left


async def test_what_a_dependency_is_annotated_with_may_be_imported_for_type_checkers_only(app: Everwork) -> None:
    async def price() -> Decimal:  # Decimal is not imported at run time.
        return 5  # type: ignore[return-value]

    @app.job("a")
    async def handle(price: Decimal = Depends(price)) -> str:
        return str(price)

    async with rehearse(app) as stage:
        handle_a = await handle.enqueue()
        await stage.drain(raise_errors=True)
        assert stage.job(handle_a).result == "5"
    with pytest.raises(BadConfiguration, match=r"its annotations cannot be read: name 'Decimal' is not defined$"):

        @app.job("b")
        async def other(number: Decimal, price: Decimal = Depends(price)) -> None: ...


async def test_a_dependency_is_opened_once_per_attempt_and_those_that_need_it_share_it(app: Everwork) -> None:
    opened.clear()

    @app.job("a")
    async def handle(one: Session = Depends(base), right: Right = Depends(Right)) -> None:
        assert right.is_shared

    @app.job("b")
    def plain(right: Right = Depends(Right), one: Session = Depends(base)) -> None:
        assert right.is_shared

    async with rehearse(app) as stage:
        await app.enqueue_many([("a", {}), ("b", {})])
        await stage.drain(raise_errors=True)
    assert opened == ["a 1 3", "b 1 3"]


async def test_all_of_a_plain_handler_runs_in_one_thread_and_its_async_dependencies_in_the_event_loop(
    app: Everwork, tmp_path: Path
) -> None:
    loop_threads: list[int] = []

    def connection() -> Iterator[sqlite3.Connection]:
        own = sqlite3.connect(tmp_path / "own.db")  # Belongs to its thread, and says so.
        yield own
        own.execute("CREATE TABLE done (id)")
        own.close()

    async def token(own: sqlite3.Connection = Depends(connection)) -> AsyncIterator[str]:
        task = asyncio.current_task()
        loop_threads.append(threading.get_ident())
        yield "secret"
        assert asyncio.current_task() is task
        loop_threads.append(threading.get_ident())

    @app.job("plain")
    def handle(token: str = Depends(token), own: sqlite3.Connection = Depends(connection)) -> str:
        own.execute("SELECT 1")
        return token

    async with rehearse(app) as stage:
        await app.enqueue("plain")
        runs = await stage.drain(raise_errors=True)
    assert [run.outcome for run in runs] == ["complete"]
    assert loop_threads == [threading.get_ident()] * 2


async def test_what_may_block_runs_in_a_thread_beside_an_async_handler_which_keeps_its_task(app: Everwork) -> None:
    where: list[bool] = []
    mark: ContextVar[str] = ContextVar("mark", default="")

    def blocking() -> Iterator[None]:
        where.append(threading.current_thread() is threading.main_thread())
        yield
        where.append(threading.current_thread() is threading.main_thread())

    async def scoped() -> AsyncIterator[None]:
        async with asyncio.timeout(60):  # Must be left in the task that has entered it.
            mark.set("set")
            yield

    @app.job("a")
    async def handle(a: None = Depends(blocking), b: None = Depends(scoped)) -> str:
        return mark.get()

    async with rehearse(app) as stage:
        key = await app.enqueue("a")
        await stage.drain(raise_errors=True)
        assert stage.job(key).result == "set"
    assert where == [False, False]


# Arguments ------------------------------------------------------------------------------------------------------------


async def test_a_parameter_filled_by_a_dependency_is_no_argument(app: Everwork) -> None:
    @app.job("a")
    async def handle(number: int, one: Session = Depends(function)) -> None: ...

    with pytest.raises(
        InvalidInput, match=r"^one: is filled by Depends\(function\) when the job runs, and cannot be passed$"
    ):
        await app.enqueue("a", number=1, one=2)
    with pytest.raises(InvalidInput, match=r"it takes 'number'$"):
        await app.enqueue("a", number=1, other=2)


async def test_a_handler_that_takes_any_argument_does_not_take_one_for_a_dependency(app: Everwork) -> None:
    @app.job("a")
    async def handle(one: Session = Depends(function), **rest: Any) -> None: ...

    with pytest.raises(InvalidInput, match=r"^one: is filled by Depends\(function\)"):
        await app.enqueue("a", one=2)


async def test_a_worker_class_may_have_dependencies(clock: VirtualClock) -> None:
    got: list[object] = []

    class Greeter(AbstractWorker):
        @classmethod
        def _get_settings(cls) -> WorkerSettings:
            return WorkerSettings(title="greeter", description="greets", sources={"greet"})

        async def __call__(self, name: str, one: Session = Depends(generator)) -> None:
            got.append((name, type(one)))

    async with rehearse(Greeter) as stage:
        await stage.app.enqueue("greet", name="Ada")
        await stage.drain(raise_errors=True)
    assert got == [("Ada", Session)]


# Refused at declaration -----------------------------------------------------------------------------------------------


def takes_request(request: fastapi.Request) -> str:
    return request.url.path


def takes_tenant(tenant: str = fastapi.Depends(takes_request)) -> str:
    return tenant


def takes_query(limit: int = fastapi.Query(10)) -> int:
    return limit


def takes_untyped(what) -> None: ...  # type: ignore[no-untyped-def]


def takes_unreadable(amount: Decimal) -> None: ...


def of_process(ctx: JobContext) -> None: ...


def of_process_too(one: Session = Depends(function)) -> None: ...


def circle(one: Annotated[None, Depends(lambda: None)]) -> None: ...


circle.__annotations__["one"] = Annotated[None, Depends(circle)]


@pytest.mark.parametrize(
    ("marker", "problem"),
    [
        (Depends(takes_request), "Depends(takes_request): parameter 'request' (Request) cannot be filled; a depend"),
        (fastapi.Depends(takes_tenant), "Depends(takes_tenant -> takes_request): parameter 'request' (Request)"),
        (Depends(takes_query), r"Depends(takes_query): parameter 'limit' (int) cannot be filled"),
        (Depends(takes_untyped), r"Depends(takes_untyped): parameter 'what' cannot be filled"),
        (Depends(takes_unreadable), r"Depends(takes_unreadable): parameter 'amount' (Decimal) cannot be filled"),
        (Depends(of_process, scope="process"), "Depends(of_process): parameter 'ctx': scope="),
        (Depends(of_process_too, scope="process"), "Depends(of_process_too): parameter 'one': must have scope="),
        (Depends(circle), r"Depends(circle -> circle): depends on itself"),
        (Depends(dict.fromkeys), r"Depends(fromkeys): parameter 'iterable' cannot be filled"),
    ],
)  # fmt: skip
def test_what_cannot_be_filled_is_refused_at_declaration_with_the_way_to_it(
    app: Everwork, marker: Any, problem: str
) -> None:
    async def handle(db: Any = marker) -> None: ...

    with pytest.raises(BadConfiguration) as refused:
        app.job("a")(handle)
    assert str(refused.value).startswith(f"parameter 'db': {problem}")


def test_a_wrong_use_of_depends_is_refused_in_one_line(app: Everwork) -> None:
    with pytest.raises(BadConfiguration, match=r"^Depends: must take a function or a class, not 'text'$"):
        Depends("text")  # type: ignore[call-overload]
    with pytest.raises(BadConfiguration, match=r"^Depends: scope must be one of job, process, not 'app'$"):
        Depends(function, scope="app")  # type: ignore[call-overload]

    async def handle(one: Annotated[Session, Depends(function)] = Depends(generator)) -> None: ...

    with pytest.raises(BadConfiguration, match=r"^parameter 'one': has more than one Depends$"):
        app.job("a")(handle)


# FastAPI --------------------------------------------------------------------------------------------------------------


async def session() -> AsyncIterator[Session]:
    opened.append("session")
    yield Session()


class Repository:
    """Made by its own class."""

    def __init__(self, one: Annotated[Session, fastapi.Depends(session)], page: int = 1) -> None:
        self.one = one


def fresh(one: Session = fastapi.Depends(session, use_cache=False)) -> Session:
    return one


async def test_dependencies_of_fastapi_are_accepted_as_they_are(app: Everwork) -> None:
    opened.clear()

    @app.job("a")
    async def handle(
        repository: Annotated[Repository, fastapi.Depends()],
        one: Session = fastapi.Depends(session),
        other: Session = fastapi.Depends(fresh),
    ) -> None:
        assert repository.one is one
        assert other is not one

    async with rehearse(app) as stage:
        await app.enqueue("a")
        await stage.drain(raise_errors=True)
    assert opened == ["session", "session"]


# Overrides ------------------------------------------------------------------------------------------------------------


async def test_overrides_replace_dependencies_wherever_they_are_needed_and_only_inside(app: Everwork) -> None:
    def name() -> str:
        return "real"

    def greeting(name: str = Depends(name)) -> str:
        return f"hello {name}"

    async def fake() -> AsyncIterator[str]:
        yield "fake"

    seen: list[str] = []

    @app.job("a")
    def handle(greeting: str = Depends(greeting)) -> None:
        seen.append(greeting)

    async with rehearse(app) as stage:
        with app.overrides({name: fake}):
            with stage.overrides({greeting: lambda: "bye", name: lambda: "unused"}):
                await app.enqueue("a")
                await stage.drain(raise_errors=True)
            await app.enqueue("a")
            await stage.drain(raise_errors=True)
        await app.enqueue("a")
        await stage.drain(raise_errors=True)
    assert seen == ["bye", "hello fake", "hello real"]


async def test_an_override_that_needs_what_it_replaces_fails_the_attempt_with_a_clear_error(app: Everwork) -> None:
    def name() -> str:
        return "real"

    def loud(name: str = Depends(name)) -> str:
        return name.upper()

    @app.job("a", retry=None)
    async def handle(name: str = Depends(name)) -> None: ...

    async with rehearse(app) as stage:
        with app.overrides({name: loud}):
            await app.enqueue("a")
            (run,) = await stage.drain()
    assert run.error == "BadConfiguration: overrides: dependency 'loud' depends on itself"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([function], r"^overrides: must be a mapping of functions, not "),
        ({function: 5}, r"^overrides: must map functions to functions, not .* to 5$"),
        (
            {function: takes_request},
            r"^overrides of function: Depends\(takes_request\): parameter 'request' \(Request\)",
        ),
    ],
)
def test_wrong_overrides_are_refused(app: Everwork, given: Any, problem: str) -> None:
    with pytest.raises(BadConfiguration, match=problem), app.overrides(given):
        pass


# Shared by the process ------------------------------------------------------------------------------------------------


async def test_a_dependency_of_the_process_is_opened_once_and_closed_when_the_workers_stop(app: Everwork) -> None:
    steps: list[str] = []

    async def pool() -> AsyncIterator[Session]:
        steps.append("opened")
        async with asyncio.timeout(60):  # Opened and closed in the same task.
            yield Session()
        steps.append("closed")

    def sized(pool: Session = Depends(pool, scope="process")) -> Iterator[int]:
        yield 5
        steps.append("sized closed")

    @app.job("a", concurrency=3)
    async def handle(one: Session = Depends(pool, scope="process")) -> None:
        steps.append("a")

    @app.job("b", concurrency=3)
    def plain(size: int = Depends(sized, scope="process"), one: Session = Depends(pool, scope="process")) -> None:
        steps.append("b")

    async with app, working(app):
        keys = await app.enqueue_many([("a", {}), ("b", {}), ("a", {}), ("b", {})])
        for key in keys:
            assert (await finished(app, key)).state is State.COMPLETED
        assert sorted(steps) == ["a", "a", "b", "b", "opened"]
    assert steps[-2:] == ["sized closed", "closed"]


async def test_a_dependency_of_the_process_that_fails_to_open_fails_the_attempt_and_is_opened_again(
    app: Everwork,
) -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("not yet")
        return len(tries)

    @app.job("a")
    async def handle(number: int = Depends(flaky, scope="process")) -> int:
        return number

    async with rehearse(app) as stage:
        await app.enqueue_many([("a", {}), ("a", {})])
        runs = await stage.drain(until_empty=True)
    assert [run.outcome for run in runs] == ["fail", "complete", "complete"]
    assert len(tries) == 2


async def test_a_dependency_of_the_process_is_not_opened_for_a_thread_that_outlives_the_workers(app: Everwork) -> None:
    steps: list[str] = []
    may_open = threading.Event()

    def slow() -> Iterator[None]:
        may_open.wait(60)
        try:
            yield
        finally:
            steps.append("slow closed")

    def pool() -> Iterator[Session]:
        steps.append("opened")
        yield Session()

    @app.job("a", timeout=0.05, retry=None)
    def handle(first: None = Depends(slow), one: Session = Depends(pool, scope="process")) -> None:
        steps.append("called")

    async with app:
        async with working(app):
            await finished(app, await app.enqueue("a"))
        may_open.set()
        await until(lambda: "slow closed" in steps)
    assert steps == ["slow closed"]
