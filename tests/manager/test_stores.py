"""Backends and brokers: made from a URL, opened when they are used, each for one side of a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from everwork.aio.clocks import host_clock_ms
from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.engines.contract import Engine
from everwork.exceptions import BadConfiguration, EngineUnavailable, InvalidInput, NotFound
from everwork.manager import stores
from everwork.manager.stores import AbstractBackend, AbstractBroker, PostgresBroker, RedisBroker, SqliteBroker
from everwork.runtime.events import Event
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry, TriggerEntry, WorkerEntry, own_source
from everwork.service.fleet.fleet import Fleet
from tests.factories import the_job
from tests.stores import VirtualClock, url_of

pytestmark = pytest.mark.every_engine
KINDS = {"sqlite": "Sqlite", "postgres": "Postgres", "redis": "Redis"}
WORKER = WorkerEntry(id="a1", title="Mailer", sources=("email-send",))
TRIGGER = TriggerEntry(worker_id="a1", id="t1", title="Nightly", type=own_source("a1"))
PROCESS = ProcessEntry(name="p1", manager="m1", state="running", workers=("a1",))


@pytest.fixture
async def broker(engine_name: str, tmp_path: Path) -> AsyncIterator[AbstractBroker]:
    """The broker of the test's store."""
    made: AbstractBroker = getattr(stores, f"{KINDS[engine_name]}Broker")(url_of(engine_name, tmp_path))
    yield made
    await made.close()


@pytest.fixture
async def backend(engine_name: str, tmp_path: Path) -> AsyncIterator[AbstractBackend]:
    """The backend of the test's store."""
    made: AbstractBackend = getattr(stores, f"{KINDS[engine_name]}Backend")(url_of(engine_name, tmp_path))
    yield made
    await made.close()


def losing_answers(broker: AbstractBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A call after which the engine's next answer to a create is lost; the broker must not be open yet."""
    engine, to_lose = broker._engine.fresh(), list[bool]()
    create = engine.create

    async def lossy(jobs: Sequence[NewJob]) -> list[Created]:
        created = await create(jobs)
        if to_lose:
            to_lose.pop()
            raise EngineUnavailable("the connection was lost")
        return created

    monkeypatch.setattr(engine, "create", lossy)
    monkeypatch.setattr(broker._engine, "fresh", lambda: engine)
    return lambda: to_lose.append(True)


async def test_an_event_that_is_pushed_becomes_a_job(broker: AbstractBroker, engine: Engine) -> None:
    key = await broker.push(Event(source="email-send", kwargs={"to": "a@b.c"}, delay=60, dedupe_key="welcome:42"))
    again = await broker.push(Event(source="email-send", dedupe_key="welcome:42"))

    job = await the_job(engine, key)
    assert (job.type, job.variables) == ("email-send", '{"to":"a@b.c"}')
    assert (again, key.deduplicated, again.deduplicated) == (key, False, True)


async def test_many_events_are_published_together_or_not_at_all(broker: AbstractBroker, engine: Engine) -> None:
    good = Event(source="email-send")

    keys = await broker.push_many([good, good])

    assert [(await the_job(engine, key)).type for key in keys] == ["email-send"] * 2
    bad: list[tuple[Any, str]] = [
        (Event(source=""), r"events\[1\]\.source: must have 1 to 255 characters"),
        (Event(source="x", kwargs={"a": object()}), r"events\[1\]\.kwargs: must consist of JSON values"),
        ({"source": "x"}, r"events\[1\]: must be an Event, not \{'source': 'x'\}"),
    ]
    for event, told in bad:
        with pytest.raises(InvalidInput, match=told):
            await broker.push_many([good, event])
    assert sum(count.jobs for count in await engine.count()) == 2
    assert await broker.push_many([]) == []


async def test_only_an_event_with_a_dedupe_key_is_pushed_again_after_a_lost_answer(
    broker: AbstractBroker, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_next_answer = losing_answers(broker, monkeypatch)
    lose_next_answer()
    key = await broker.push(Event(source="email-send", dedupe_key="welcome:42"))
    lose_next_answer()
    with pytest.raises(EngineUnavailable):
        await broker.push(Event(source="login"))

    counts = [(count.type, count.jobs) for count in await engine.count()]

    assert sorted(counts) == [("email-send", 1), ("login", 1)]
    assert key.deduplicated, "the answer was not lost"


async def test_a_broker_that_was_closed_opens_again(broker: AbstractBroker, engine: Engine) -> None:
    async with broker:
        first = await broker.push(Event(source="email-send"))
    await broker.close()

    second = await broker.push(Event(source="email-send"))

    assert [(await the_job(engine, key)).key for key in (first, second)] == [first, second]


async def test_first_uses_at_the_same_time_share_one_opening(broker: AbstractBroker) -> None:
    keys = await asyncio.gather(*(broker.push(Event(source="email-send")) for _ in range(20)))

    assert len(set(keys)) == 20


async def test_a_backend_tells_how_workers_and_processes_are(
    backend: AbstractBackend, engine: Engine, clock: VirtualClock
) -> None:
    clock.now_ms = host_clock_ms()  # The backend's own engine uses it.
    fleet = Fleet(engine)
    await fleet.declare([WORKER], [TRIGGER])
    await fleet.beat(ManagerEntry(name="m1"), [PROCESS])
    assert await backend.switch_worker("Mailer", False)
    assert await backend.switch_trigger("Nightly", False)

    worker = await backend.get_worker_status("a1")

    assert (worker.status, worker.processes) == ("off", 1)
    assert (await backend.get_process_status("p1")).state == "running"
    assert await backend.processes() == [PROCESS]
    assert [(view.entry, view.status) for view in await backend.triggers()] == [(TRIGGER, "off")]
    assert await backend.workers() == [worker]
    with pytest.raises(NotFound, match="worker 'Nobody' not found"):
        await backend.get_worker_status("Nobody")
    with pytest.raises(NotFound, match="process 'p2' not found"):
        await backend.get_process_status("p2")


def test_a_broker_works_in_one_loop_after_another(tmp_path: Path) -> None:
    broker = SqliteBroker(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def push_and_leave_open() -> int:
        return await broker.push(Event(source="email-send"))

    async def push_and_close() -> int:
        async with broker:
            return await broker.push(Event(source="email-send"))

    assert asyncio.run(push_and_leave_open()) < asyncio.run(push_and_close())


def test_a_loop_that_ends_closes_what_was_left_open_in_it(engine_name: str, tmp_path: Path) -> None:
    broker: AbstractBroker = getattr(stores, f"{KINDS[engine_name]}Broker")(url_of(engine_name, tmp_path))

    def push() -> tuple[int, int]:
        asyncio.run(broker.push(Event(source="email-send")))
        for thread in threading.enumerate():
            if thread.name == "everwork-sqlite-wait":
                thread.join()  # It has answered, and is about to end.
        return threading.active_count(), sum(1 for _ in Path("/proc/self/fd").iterdir())

    push()
    assert push() == push()


async def test_a_broker_in_use_by_another_loop_says_so(tmp_path: Path) -> None:
    async with SqliteBroker(f"sqlite:///{tmp_path / 'jobs.db'}") as broker:
        for use in (broker.open, broker.close):
            with pytest.raises(BadConfiguration, match="SqliteBroker: is in use by another event loop"):
                await asyncio.to_thread(asyncio.run, use())

        assert await broker.push(Event(source="email-send"))


async def test_a_store_that_cannot_be_opened_is_tried_again_at_the_next_use(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    broker = SqliteBroker(f"sqlite:///{folder / 'jobs.db'}")
    with pytest.raises(EngineUnavailable, match="does not exist; create it first"):
        await broker.push(Event(source="email-send"))
    folder.mkdir()

    assert await broker.push(Event(source="email-send"))
    await broker.close()


def test_a_wrong_url_is_refused_at_once() -> None:
    with pytest.raises(BadConfiguration, match=r"^SqliteBroker: the URL must start with sqlite://, not with 'redis'$"):
        SqliteBroker("redis://user:secret@host")
    with pytest.raises(BadConfiguration, match=r"must start with redis:// or rediss:// .*redis\+unix://$"):
        RedisBroker("user:secret@host")
    with pytest.raises(BadConfiguration, match=r"must be a string like sqlite:///jobs\.db, not None"):
        PostgresBroker(None)  # type: ignore[arg-type]
    with pytest.raises(
        BadConfiguration, match="AbstractBroker: must be a subclass for an engine, such as SqliteBroker"
    ):
        AbstractBroker("sqlite:///jobs.db")


def test_a_password_is_not_shown() -> None:
    broker = RedisBroker("redis://user:secret@host:6379/0")

    assert repr(broker) == "RedisBroker('redis://user:***@host:6379/0')"
    assert broker.url == "redis://user:secret@host:6379/0"


def test_a_program_that_publishes_loads_no_server_and_no_other_engine(tmp_path: Path) -> None:
    program = (
        "import sys, everwork.manager.stores as stores\n"
        f"stores.SqliteBroker('sqlite:///{tmp_path / 'jobs.db'}')\n"
        "print([name for name in ('grpc', 'starlette', 'typer', 'redis', 'asyncpg', 'psycopg') if name in sys.modules])"
    )

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert answer.stdout == "[]\n"
