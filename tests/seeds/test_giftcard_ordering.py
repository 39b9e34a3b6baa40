"""Lists by `run_at` and by the time of failure: REST on both paths, command line, clients."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from everwork.client import Client
from everwork.core.outcome import Failed
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import InvalidInput
from tests.cli.conftest import Cli
from tests.client.server import KEY, ServerProcess
from tests.factories import a_dead_letter, a_pending_job, a_scheduled_job, activated, settled
from tests.server.http.serving import serving
from tests.stores import HOUR_MS, VirtualClock, url_of

LIMIT: Final = 2


class Filled(NamedTuple):
    """A store, and the keys of its jobs in each order."""

    url: str
    folder: Path
    newest: list[int]
    due: list[int]
    failed: list[int]


@pytest.fixture
async def filled(tmp_path: Path) -> Filled:
    """Three dead letters, of which the first failed last, and three pending jobs, of which the last is due first."""
    clock, url = VirtualClock(time.time_ns() // 1_000_000), url_of("sqlite", tmp_path)  # Retention is real.
    engine = open_engine(url, clock=clock)
    await engine.open()
    dead = await three_dead(engine, clock)
    pending = [(await a_scheduled_job(engine, delay_ms=hours * HOUR_MS)).key for hours in (2, 1)]
    pending.append((await a_pending_job(engine)).key)
    await engine.close()
    return Filled(url, tmp_path, sorted([*dead, *pending], reverse=True), pending[::-1], dead)


async def three_dead(engine: Engine, clock: VirtualClock) -> list[int]:
    """The keys of three dead letters, the latest failure first."""
    late = await activated(engine, await a_pending_job(engine, type="slow"), lease_ms=HOUR_MS)
    others = []
    for _ in range(2):
        others.append((await a_dead_letter(engine)).key)
        clock.advance(seconds=1)
    await settled(engine, Failed(late.key, 1, "late", final=True))
    return [late.key, *others[::-1]]


async def by_rest(store: Filled, order: str, path: str) -> list[int]:
    keys: list[int] = []
    async with serving(store.url) as rest:
        cursor: dict[str, Any] = {}
        while True:
            page = await rest.ok("GET", path, params={"order": order, "limit": LIMIT, **cursor})
            keys += [int(job["key"]) for job in page["jobs"]]
            if page["next"] is None:
                return keys
            cursor = {"cursor": page["next"]}


async def by_command(store: Filled, order: str) -> list[int]:
    keys: list[int] = []
    cursor: list[str] = []
    while True:
        words = ("jobs", "list", "--order", order, "--limit", str(LIMIT), "--json", *cursor)
        page = Cli(store.folder)(*words, EVERWORK_ENGINE=store.url).json
        keys += [int(job["key"]) for job in page["jobs"]]
        if page["next"] is None:
            return keys
        cursor = ["--cursor", page["next"]]


async def by_client(address: str, order: str, key: str | None = None) -> list[int]:
    async with Client(address, key=key) as client:
        keys: list[int] = []
        cursor: int | None = None
        while True:
            page = await client.page(cursor, limit=LIMIT, order=order)
            keys += [job.key for job in page.jobs]
            cursor = page.next
            if cursor is None:
                assert [job.key async for job in client.list(order=order)] == keys
                return keys


async def by_grpc(store: Filled, order: str) -> list[int]:
    server = ServerProcess(store.url, store.folder).start()
    try:
        return await by_client(server.grpc_url, order, KEY)
    finally:
        server.stop()


DOORS: Final[dict[str, Callable[[Filled, str], Awaitable[list[int]]]]] = {
    "GET /api/v1/jobs": lambda store, order: by_rest(store, order, "/api/v1/jobs"),
    "GET /jobs": lambda store, order: by_rest(store, order, "/jobs"),
    "everwork jobs list": by_command,
    "client": lambda store, order: by_client(store.url, order),
    "gRPC": by_grpc,
}


@pytest.mark.parametrize("order", ["newest", "due", "failed"])
@pytest.mark.parametrize("door", DOORS)
async def test_jobs_are_listed_page_by_page_in_the_order_asked_for(filled: Filled, door: str, order: str) -> None:
    assert await DOORS[door](filled, order) == getattr(filled, order)


async def test_the_newest_come_first_unless_another_order_is_asked_for(filled: Filled) -> None:
    async with serving(filled.url) as rest:
        assert [int(job["key"]) for job in (await rest.ok("GET", "/jobs"))["jobs"]] == filled.newest


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"order": "due", "state": "completed"}, "'due' lists pending jobs only, not completed"),
        ({"order": "failed", "state": "activatable"}, "'failed' lists failed jobs only, not pending"),
        ({"order": "oldest"}, "must be one of newest, due, failed, not 'oldest'"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_by_name(
    filled: Filled, asked: dict[str, str], problem: str
) -> None:
    async with serving(filled.url) as rest:
        refused = await rest.refused(422, "GET", "/jobs", params=asked)
        assert refused["detail"] == f"order: {problem}"
    words = [word for name, value in asked.items() for word in (f"--{name}", value)]
    assert problem in Cli(filled.folder)("jobs", "list", *words, EVERWORK_ENGINE=filled.url).complaint


async def test_a_cursor_of_another_order_is_refused(filled: Filled) -> None:
    async with Client(filled.url) as client:
        page = await client.page(limit=1, order="due")
        with pytest.raises(InvalidInput, match="cursor: belongs to a list in a different order"):
            await client.page(page.next, limit=1)


async def test_groups_of_dead_letters_are_listed_by_their_latest_failure(filled: Filled) -> None:
    listed = Cli(filled.folder)("dead", "list", "--order", "failed", "--json", EVERWORK_ENGINE=filled.url).json
    usual = Cli(filled.folder)("dead", "list", "--json", EVERWORK_ENGINE=filled.url).json
    assert [group["type"] for group in listed["groups"]] == ["slow", "email-send"]
    assert [group["type"] for group in usual["groups"]] == ["email-send", "slow"]
    async with serving(filled.url) as rest:
        assert await rest.ok("GET", "/api/v1/dead", params={"order": "failed"}) == listed
