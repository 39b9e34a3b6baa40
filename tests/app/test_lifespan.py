"""The lifespan of an application: once per worker process, around all of its jobs; its state in the context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from everwork import Depends, Everwork, JobContext, State
from everwork.exceptions import BadConfiguration
from everwork.testing import rehearse
from tests.app.waiting import finished, until, working
from tests.stores import VirtualClock, url_of

Make = Callable[..., Everwork]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """One engine will do: none knows of lifespans."""
    return url_of("sqlite", tmp_path)


@pytest.fixture
async def make(url: str, clock: VirtualClock) -> AsyncIterator[Make]:
    """Makes an application with a lifespan, whose one function returns the state."""
    made: list[Everwork] = []

    def make(lifespan: Any) -> Everwork:
        app = Everwork(url, clock=clock, lifespan=lifespan)
        made.append(app)

        @app.job("state")
        async def state(ctx: JobContext) -> Any:
            return ctx.state

        return app

    yield make
    for app in made:
        await app.close()


async def test_the_lifespan_is_entered_before_the_first_job_and_left_after_the_last_and_before_the_engine_is_closed(
    make: Make,
) -> None:
    steps: list[Any] = []

    @asynccontextmanager
    async def lifespan(app: Everwork) -> AsyncIterator[dict[str, int]]:
        steps.append(await app.enqueue("state"))
        async with asyncio.timeout(60):  # Left in the task that has entered it.
            yield {"pool": 5}
        steps.append((await app.get(steps[0])).state)

    app = make(lifespan)
    async with app:
        work = asyncio.create_task(app.work())
        await until(lambda: steps)
        assert await app.result(steps[0], timeout=60) == {"pool": 5}
    await work
    assert steps[1:] == [State.COMPLETED]


@asynccontextmanager
async def without_parameter() -> AsyncIterator[int]:
    yield 1


@contextmanager
def plain(app: Everwork) -> Iterator[int]:
    yield 1


async def undecorated(app: Everwork) -> AsyncIterator[int]:
    yield 1


class Lifespan:
    """A class is a context manager function, too."""

    async def __aenter__(self) -> int:
        return 1

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("lifespan", [without_parameter, plain, undecorated, Lifespan])
async def test_every_kind_of_context_manager_is_a_lifespan(make: Make, lifespan: Any) -> None:
    app = make(lifespan)
    async with app:
        key = await app.enqueue("state")
        await app.run_once()
        assert await app.result(key) == 1


async def test_without_a_lifespan_there_is_no_state(make: Make) -> None:
    app = make(None)
    async with app, working(app):
        assert await app.result(await app.enqueue("state"), timeout=60) is None


async def test_a_tick_has_a_lifespan_and_ticks_beside_workers_share_theirs(make: Make) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("in")
        yield
        steps.append("out")

    app = make(lifespan)
    async with app:
        await app.run_once()
        assert steps == ["in", "out"]
        await asyncio.gather(app.run_once(), app.run_once())
        assert steps == ["in", "out"] * 2


async def test_a_stage_has_a_lifespan_and_leaves_it_at_the_end(make: Make) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        steps.append("in")
        yield "state"
        steps.append("out")

    app = make(lifespan)

    def of_context(ctx: JobContext) -> str:
        return f"{ctx.state} of a dependency"

    @app.job("dependent")
    def dependent(text: str = Depends(of_context)) -> str:
        return text

    async with rehearse(app) as stage:
        key = await app.enqueue("dependent")
        await stage.drain(raise_errors=True)
        await stage.drain()
        assert stage.job(key).result == "state of a dependency"
        assert steps == ["in"]
    assert steps == ["in", "out"]


def test_a_sync_stage_has_a_lifespan_too(tmp_path: Path) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("in")
        yield
        steps.append("out")

    app = Everwork(url_of("sqlite", tmp_path), lifespan=lifespan)

    @app.job("a")
    def handle() -> None:
        steps.append("called")

    with rehearse(app) as stage:
        app.sync.enqueue("a")
        stage.drain(raise_errors=True)
    assert steps == ["in", "called", "out"]


# Trouble --------------------------------------------------------------------------------------------------------------


async def test_workers_whose_lifespan_fails_do_not_start_and_say_where(make: Make) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise ConnectionError("no database")
        yield

    app = make(lifespan)
    async with app:
        key = await app.enqueue("state")
        for start in (app.work, app.run_once):
            with pytest.raises(BadConfiguration) as refused:
                await start()
            text = str(refused.value)
            assert text.startswith("lifespan: failed on entry: ConnectionError: no database (")
            assert f"{Path(__file__).name}, line " in text
        assert (await app.get(key)).state is State.PENDING


async def test_a_lifespan_that_fails_on_exit_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise ConnectionError("already gone")

    app = make(lifespan)
    async with app:
        await app.run_once()
    assert "lifespan or shared dependency failed on exit: error='ConnectionError: already gone (" in caplog.text


async def test_a_stop_does_not_wait_for_a_lifespan_that_does_not_start(make: Make) -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("entering")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cancelled")
        yield

    app = make(lifespan)
    async with app:
        work = asyncio.create_task(app.work())
        await until(lambda: steps)
        app.stop()
        await asyncio.wait_for(work, 60)
    assert steps == ["entering", "cancelled"]


async def test_a_lifespan_that_does_not_end_is_left_behind_after_the_shutdown_timeout(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    app = make(lifespan)
    async with app:
        await app.run_once(shutdown_timeout=0.01)
    assert "lifespan and shared dependencies did not close in time" in caplog.text


async def test_a_lifespan_cannot_close_its_own_application(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan(app: Everwork) -> AsyncIterator[None]:
        yield
        await app.close()

    app = make(lifespan)
    async with app:
        key = await app.enqueue("state")
        await app.run_once()
        assert (await finished(app, key)).state is State.COMPLETED
    assert "close: the lifespan cannot close its own application; call app.stop() instead" in caplog.text


async def coroutine(app: Everwork) -> None: ...


def takes_two(app: Everwork, other: int) -> Any: ...


def takes_name(*, name: str) -> Any: ...


@pytest.mark.parametrize(
    ("lifespan", "problem"),
    [
        (5, r"^lifespan: must be a function with @asynccontextmanager, not 5$"),
        (coroutine, r"^lifespan: must be a function with @asynccontextmanager, not "),
        (takes_two, r"^lifespan: takes_two must take the application or no argument, not 'other'$"),
        (takes_name, r"^lifespan: takes_name must take the application or no argument, not 'name'$"),
    ],
)
def test_what_cannot_be_a_lifespan_is_refused_at_once(lifespan: Any, problem: str) -> None:
    with pytest.raises(BadConfiguration, match=problem):
        Everwork("sqlite:///:memory:", lifespan=lifespan)


async def test_a_lifespan_that_returns_no_context_manager_is_refused_at_the_start(make: Make) -> None:
    app = make(lambda: 5)
    async with app:
        with pytest.raises(BadConfiguration, match=r"^lifespan: must return a context manager, not 5$"):
            await app.run_once()
