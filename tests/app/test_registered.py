"""The workers of an application in the registry: seen while idle, gone when they stop, and known to explanations."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from everwork import Everwork
from everwork.app.workers import chosen
from everwork.core.queries import Reason
from everwork.engines.values import Registered
from everwork.exceptions import InvalidInput
from everwork.service.doctor import examine
from everwork.service.fleet.entries import ProcessView
from everwork.service.fleet.live import CLIENTS, FIRING, FLEET_TTL_MS, PROCESS
from tests.app.waiting import DEADLINE_S, until
from tests.stores import MINUTE_MS, START_MS, VirtualClock


@asynccontextmanager
async def working(app: Everwork, types: list[str] | None = None) -> AsyncIterator[ProcessView]:
    """Workers that are registered, inside this context."""
    before = {view.entry.name for view in await live(app)}
    task = asyncio.ensure_future(app.work(types=types))
    await until(lambda: is_more(app, before) if not task.done() else task.result())
    yield next(view for view in await live(app) if view.entry.name not in before)
    app.stop()
    await task


async def live(app: Everwork) -> list[ProcessView]:
    """The registered workers."""
    return await app._host.call(lambda service: service.fleet.process_views())


async def registered(app: Everwork, kind: str | None) -> list[Registered]:
    """The entries of a kind, or of all."""
    return await app._host.call(lambda service: service._engine.registered(kind))


async def is_more(app: Everwork, before: set[str]) -> bool:
    return bool({view.entry.name for view in await live(app)} - before)


@pytest.mark.every_engine
async def test_an_idle_application_is_listed_and_gone_as_soon_as_it_stops(app: Everwork) -> None:
    @app.job("b-send", concurrency=3)
    async def b_send() -> None: ...

    @app.job("a-send", cron="0 3 * * *")
    async def a_send() -> None: ...

    async with working(app) as view:
        entry = view.entry
        assert (entry.kind, entry.state, entry.types, entry.concurrency) == (
            "application",
            "running",
            ("a-send", "b-send"),
            4,
        )
        assert (entry.host, entry.pid, entry.lease_name) == (socket.gethostname(), os.getpid(), "w1")
        assert entry.name != "w1"
        assert (view.beat_ms, entry.running, (entry.memory_bytes or 0) > 1_000_000) == (START_MS, 0, True)
    assert await live(app) == []
    assert {PROCESS, FIRING, CLIENTS}.isdisjoint(one.kind for one in await registered(app, None))


async def test_functions_that_share_a_pool_are_listed_by_their_types(app: Everwork) -> None:
    async def send() -> None: ...

    for type in ("b", "a"):
        app.job(type, concurrency=3)(send).pool = "shared"
    async with working(app) as view:
        assert (view.entry.types, view.entry.concurrency) == (("a", "b"), 3)


async def test_one_that_is_killed_is_gone_after_its_heartbeat_expires(app: Everwork, clock: VirtualClock) -> None:
    @app.job("mail")
    async def mail() -> None: ...

    async with working(app) as view:
        await app._host.call(lambda service: service.fleet.beat(None, [view.entry]))
        clock.advance(ms=FLEET_TTL_MS)
        assert await live(app) == []


async def test_only_the_functions_that_were_chosen_run(app: Everwork) -> None:
    for type in ("mail-send", "mail-drop", "report"):
        app.job(type, cron="* * * * *")(_nothing)
    async with working(app, ["mail-*", "mail-send"]) as view:
        assert view.entry.types == ("mail-drop", "mail-send")
        [firing] = await registered(app, FIRING)
        assert firing.body.count("function-") == 2
        key = await app.enqueue("mail-drop")
        other = await app.enqueue("report")
        await app.result(key, timeout=45)
        assert (await app.get(other)).state.label == "pending"


@pytest.mark.parametrize("types", [["mail-send", "bills"], ["x-*"]])
async def test_a_type_without_a_function_is_refused_with_those_that_there_are(app: Everwork, types: list[str]) -> None:
    for type in ("mail-send", "report"):
        app.job(type)(_nothing)
    with pytest.raises(
        InvalidInput, match=rf"types: no function matches '{types[-1][0]}.*'; known types: mail-send, report"
    ):
        await app.work(types=types)
    with pytest.raises(InvalidInput, match="types: must name at least one type"):
        await app.work(types=[])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"types": "mail"}, "types: no function matches 'mail'; known types: mail-send"),
        ({"types": 5}, "types: must be one value or a list of values, not 5"),
        ({"types": ["mail-send", 5]}, "types: must be a type or a pattern, not 5"),
        ({"shutdown_timeout": "30"}, "shutdown_timeout: must be a number from 0 to 86400, not '30'"),
        ({"shutdown_timeout": -1}, "shutdown_timeout: must be a number from 0 to 86400, not -1"),
    ],
)
async def test_wrong_settings_of_workers_are_refused_before_they_start(
    app: Everwork, given: dict[str, Any], problem: str
) -> None:
    @app.job("mail-send")
    def send() -> None: ...

    with pytest.raises(InvalidInput, match=f"^{re.escape(problem)}$"):
        await asyncio.wait_for(app.work(**given), DEADLINE_S)
    if "types" not in given:
        with pytest.raises(InvalidInput, match=f"^{re.escape(problem)}$"):
            await app.run_once(**given)


async def test_one_type_may_be_given_as_a_text(app: Everwork) -> None:
    @app.job("mail-send")
    def send() -> None: ...

    @app.job("report")
    def report() -> None: ...

    assert [*chosen(app.functions, "mail-*")] == ["mail-send"]


async def test_a_type_whose_only_worker_is_busy_has_a_worker(app: Everwork, clock: VirtualClock) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.job("slow")
    async def slow() -> None:
        begun.set()
        await may_end.wait()

    async with working(app) as view:
        await app.enqueue("slow")
        await asyncio.wait_for(begun.wait(), 45)
        key = await app.enqueue("slow")
        clock.advance(ms=2 * MINUTE_MS)
        await app._host.call(lambda service: service.fleet.beat(None, [replace(view.entry, running=1)]))
        why = await app.explain(key)
        assert why.reason is Reason.QUEUED
        assert why.text == (
            f"ready: waiting for a free worker; worker {view.entry.name} takes this type and runs 1 job now"
        )
        diagnosis = await app._host.call(lambda service: examine(service._engine, clock))
        [found] = [one for one in diagnosis.findings if "'slow'" in one.text]
        assert (found.is_problem, found.text[:37]) == (False, "all workers of type 'slow' are busy; ")
        may_end.set()


async def _nothing() -> None: ...
