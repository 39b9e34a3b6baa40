"""A tick of a manager: its workers run a few jobs in the calling process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from everwork import (
    AbstractCronSchedule,
    AbstractWorker,
    Cron,
    Event,
    PostgresBackend,
    PostgresBroker,
    Process,
    ProcessGroup,
    ProcessManager,
    RedisBackend,
    RedisBroker,
    SqliteBackend,
    SqliteBroker,
    Trigger,
    WorkerSettings,
)
from everwork.app.tick import TickResult
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.manager.stores import AbstractBackend, AbstractBroker
from everwork.runtime.middleware import Call, Middleware, Proceed
from everwork.service.fleet.fleet import Fleet

STORES: Final[dict[str, tuple[type[AbstractBackend], type[AbstractBroker]]]] = {
    "sqlite": (SqliteBackend, SqliteBroker),
    "postgresql": (PostgresBackend, PostgresBroker),
    "redis": (RedisBackend, RedisBroker),
}
STEPS: list[str] = []
pytestmark = pytest.mark.every_engine
"""What the workers did: they run in this process."""


@pytest.fixture(autouse=True)
def steps() -> list[str]:
    STEPS.clear()
    return STEPS


class Steps(AbstractWorker):
    """Notes its start, its calls and its end."""

    async def startup(self) -> None:
        STEPS.append(f"startup {self._get_settings().title}")

    async def shutdown(self) -> None:
        STEPS.append(f"shutdown {self._get_settings().title}")


class Mailer(Steps):
    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="mailer", sources={"order"}, concurrency=2)

    async def __call__(self, number: int) -> None:
        STEPS.append(f"mail {number}")


class Ledger(Steps):
    """A second worker on the same source: a group of its own."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="ledger", sources={"order"})

    async def __call__(self, number: int) -> None:
        STEPS.append(f"book {number}")


class Clock(Steps):
    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="clock", triggers=[Trigger(title="often", schedule=Cron(expression="* * * * *"))])

    async def __call__(self) -> None:
        STEPS.append("tock")


class Broken(AbstractWorker):
    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="broken", sources={"broken"})

    async def startup(self) -> None:
        raise OSError("no such mailbox")

    async def __call__(self) -> None: ...


class Waiting(Steps):
    begun: asyncio.Event
    go_on: asyncio.Event

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="waiting", sources={"wait"})

    async def __call__(self) -> None:
        Waiting.begun.set()
        await Waiting.go_on.wait()


class Around(Middleware):
    async def __call__(self, call: Call, proceed: Proceed) -> Any:
        STEPS.append("around")
        return await proceed(call)


class Often(AbstractCronSchedule):
    """Something is due at every millisecond."""

    def next_execution(self, cron_expression: str, after: datetime | None = None) -> datetime:
        return (after or datetime.now(UTC)) + timedelta(milliseconds=1)


def a_manager(url: str, *processes: Process | ProcessGroup) -> ProcessManager:
    backend, broker = STORES[url.partition(":")[0]]
    return ProcessManager(
        uuid="m",
        processes=list(processes),
        backend=backend(url),
        broker=broker(url),
        cron_schedule=Often,
        log_format=None,
    )


def a_broker(url: str) -> AbstractBroker:
    return STORES[url.partition(":")[0]][1](url)


async def publish(url: str, source: str, *numbers: int) -> None:
    async with a_broker(url) as broker:
        await broker.push_many([Event(source=source, kwargs={"number": number}) for number in numbers])


async def test_a_tick_of_worker_classes_starts_them_here_runs_so_many_jobs_and_shuts_them_down(url: str) -> None:
    manager = a_manager(url, ProcessGroup(process=Process(workers=[Mailer]), replicas=3))
    assert await manager.run_once() == TickResult()
    await publish(url, "order", 1, 2, 3)
    STEPS.clear()
    assert await manager.run_once(max_jobs=2) == TickResult(ran=2, completed=2)
    assert (STEPS[0], sorted(STEPS[1:-1]), STEPS[-1]) == ("startup mailer", ["mail 1", "mail 2"], "shutdown mailer")
    assert await manager.run_once() == TickResult(ran=1, completed=1)
    assert await manager.run_once() == TickResult()


async def test_each_worker_of_a_source_gets_its_own_copy_in_ticks_too(url: str) -> None:
    manager = a_manager(url, Process(workers=[Mailer]), Process(workers=[Ledger]))
    await manager.run_once()
    await publish(url, "order", 7)
    assert (await manager.run_once()).completed == 2
    assert {"mail 7", "book 7"} <= set(STEPS)


async def test_a_tick_fires_the_triggers_of_its_workers_that_are_due(url: str) -> None:
    manager = a_manager(url, Process(workers=[Clock]))
    fired = [await manager.run_once(max_jobs=1) for _ in range(2)]
    assert fired[-1] == TickResult(ran=1, completed=1)
    assert "tock" in STEPS


async def test_the_middleware_of_a_process_wraps_its_workers_in_a_tick(url: str) -> None:
    manager = a_manager(url, Process(workers=[Mailer], middleware=[Around]), Process(workers=[Ledger]))
    await manager.run_once()
    await publish(url, "order", 1)
    await manager.run_once()
    assert STEPS.count("around") == 1


async def test_a_worker_that_is_switched_off_is_not_started_by_a_tick(url: str) -> None:
    manager = a_manager(url, Process(workers=[Mailer]), Process(workers=[Ledger]))
    await manager.run_once()
    await publish(url, "order", 1)
    engine = open_engine(url)
    await engine.open()
    await Fleet(engine).switch_worker("mailer", False)
    await engine.close()
    STEPS.clear()
    assert await manager.run_once() == TickResult(ran=1, completed=1)
    assert STEPS == ["startup ledger", "book 1", "shutdown ledger"]


async def test_a_worker_that_cannot_start_leaves_the_others_alone_and_alone_it_is_an_error(url: str) -> None:
    both = a_manager(url, Process(workers=[Broken, Mailer]))
    await both.run_once()
    await publish(url, "order", 1)
    assert await both.run_once() == TickResult(ran=1, completed=1)
    alone = a_manager(url, Process(workers=[Broken]))
    with pytest.raises(BadConfiguration, match=r"no worker could start: Broken: OSError: no such mailbox"):
        await alone.run_once()


async def test_ticks_of_a_manager_at_the_same_time_never_run_a_job_twice(url: str) -> None:
    manager, other = (a_manager(url, Process(workers=[Mailer])) for _ in range(2))
    await manager.run_once()
    await publish(url, "order", *range(30))
    ticks = await asyncio.gather(*(one.run_once(max_jobs=15) for one in (manager, other, manager)))
    assert sum(tick.completed for tick in ticks) == 30
    assert sorted(step for step in STEPS if step.startswith("mail")) == sorted(f"mail {number}" for number in range(30))


async def test_a_stop_lets_a_tick_finish_what_runs_and_begin_nothing(url: str) -> None:
    Waiting.begun, Waiting.go_on = asyncio.Event(), asyncio.Event()
    manager = a_manager(url, Process(workers=[Waiting]))
    await manager.run_once()
    async with a_broker(url) as broker:
        await broker.push(Event(source="wait"))
        ticking = asyncio.create_task(manager.run_once())
        await asyncio.wait_for(Waiting.begun.wait(), 45)
        manager.stop()
        [stopped] = manager._ticks._stops
        await asyncio.wait_for(stopped.soft.wait(), 45)
        await broker.push(Event(source="wait"))
    Waiting.go_on.set()
    assert await ticking == TickResult(ran=1, completed=1)
    assert STEPS[-1] == "shutdown waiting"
    assert await manager.run_once() == TickResult(ran=1, completed=1)


async def test_a_cancelled_tick_hands_back_what_runs_and_shuts_down(url: str) -> None:
    Waiting.begun, Waiting.go_on = asyncio.Event(), asyncio.Event()
    manager = a_manager(url, Process(workers=[Waiting]))
    await manager.run_once()
    async with a_broker(url) as broker:
        await broker.push(Event(source="wait"))
    ticking = asyncio.create_task(manager.run_once())
    await asyncio.wait_for(Waiting.begun.wait(), 45)
    ticking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ticking
    assert STEPS[-1] == "shutdown waiting"
    Waiting.go_on.set()
    assert await manager.run_once() == TickResult(ran=1, completed=1)


async def test_a_bad_number_of_jobs_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="max_jobs: must be a whole number from 1 to 1000000, not 0"):
        await a_manager(url, Process(workers=[Mailer])).run_once(0)
