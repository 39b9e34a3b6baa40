"""A job with a damaged or missing state stops nothing else, and no job that is claimed with it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.job import NewJob
from everwork.core.queries import JobFilter
from tests.damage import StoreDamage
from tests.factories import TYPE, a_new_job, asked, leased_keys
from tests.redis.conftest import opened
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.servers import RedisServer
    from tests.stores import VirtualClock

STATES = pytest.mark.parametrize("state", [b"garbage", None, b"0" * 30 + b"p\nx"], ids=["garbage", "missing", "cut"])


async def three(engine: Engine, folder: Path, state: bytes | None, job: NewJob, *, lease: bool = False) -> list[int]:
    """The keys of three jobs; the second has a damaged state. With `lease`, it is damaged after they were leased."""
    keys = [created.key for created in await engine.create([job] * 3)]
    if lease:
        await asked(engine)
    StoreDamage(url_of("redis", folder)).spoil_hash("s", keys[1], state)
    return keys


@STATES
@pytest.mark.parametrize("delay_ms", [0, 5_000], ids=["ready", "scheduled"])
async def test_the_others_are_leased(
    engine: Engine, tmp_path: Path, clock: VirtualClock, state: bytes | None, delay_ms: int
) -> None:
    keys = await three(engine, tmp_path, state, a_new_job(delay_ms=delay_ms))
    clock.advance(seconds=5)
    assert await leased_keys(engine) == [keys[0], keys[2]]
    assert await leased_keys(engine) == []


@STATES
async def test_their_leases_are_swept_and_the_sweep_goes_on(
    engine: Engine, tmp_path: Path, clock: VirtualClock, state: bytes | None
) -> None:
    await three(engine, tmp_path, state, a_new_job(), lease=True)
    clock.advance(seconds=31)
    assert [(await engine.sweep("s")).lapsed for _ in range(2)] == [2, 0]


@STATES
async def test_they_are_shown_and_changed(engine: Engine, tmp_path: Path, state: bytes | None) -> None:
    first, damaged, last = await three(engine, tmp_path, state, a_new_job())
    assert [job.key for job in (await engine.find(JobFilter(type=TYPE), 10)).jobs] == [last, first]
    assert [job is not None for job in await engine.get([first, damaged, last])] == [True, False, True]
    assert (await engine.history(damaged), await engine.explain(damaged)) == ([], None)
    assert [judged.ok for judged in await engine.cancel([first, damaged, last])] == [True, False, True]
    assert [record.job.key for record in await engine.dump(0, 10)] == [first, last]


@STATES
async def test_the_check_of_the_store_names_it(engine: Engine, tmp_path: Path, state: bytes | None) -> None:
    _, damaged, _ = await three(engine, tmp_path, state, a_new_job())
    await leased_keys(engine)
    assert [defect.text for defect in await engine.verify()] == [f"1 job is damaged or incomplete: {damaged}"]


async def test_a_damaged_job_is_not_named_any_more_once_it_was_deleted_by_hand(engine: Engine, tmp_path: Path) -> None:
    _, damaged, _ = await three(engine, tmp_path, b"garbage", a_new_job())
    await leased_keys(engine)
    for part in ("s", "j"):
        StoreDamage(url_of("redis", tmp_path)).spoil_hash(part, damaged, None)
    assert await engine.verify() == []


async def test_many_damaged_jobs_are_left_out_in_one_pass(server: RedisServer) -> None:
    url = f"{server.url}?namespace=n"
    async with opened(url) as engine:
        keys = [created.key for created in await engine.create([a_new_job() for _ in range(100)])]
        for key in keys[::2]:
            StoreDamage(url).spoil_hash("s", key, b"garbage")
        before = reads_at(server)
        assert await leased_keys(engine, 100) == keys[1::2]
        assert reads_at(server) - before <= 10


def reads_at(server: RedisServer) -> int:
    return int(server.ask("INFO", "commandstats").partition("cmdstat_hmget:calls=")[2].split(",")[0])
