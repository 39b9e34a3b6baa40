"""Who is told of work: whoever got less than he asked for, once, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed, Release
from everwork.engines.redis.engine import RedisEngine
from tests.factories import TYPE, WORKER, a_new_job, a_processing_job, asked

DEADLINE_S = 20.0


class Ear:
    """Hears what the engine's scripts say about work."""

    def __init__(self, client: Any, channel: str) -> None:
        self._client = client
        self._channel = channel
        self._heard = client.pubsub()
        self._heard.subscribe(channel)
        self._next()

    def rings(self) -> list[str]:
        """What has been said until now."""
        self._client.publish(self._channel, "END")
        heard: list[str] = []
        while (said := self._next()) != "END":
            heard.append(said)
        return heard

    def _next(self) -> str:
        message = self._heard.get_message(timeout=DEADLINE_S)
        assert message is not None
        return message["data"].decode() if message["type"] == "message" else ""


@pytest.fixture
def ear(engine: RedisEngine) -> Iterator[Ear]:
    """Somebody who listens beside the engine."""
    with redis.Redis.from_url(engine._url.text) as client:
        yield Ear(client, f"{engine._url.tag}:work")


async def test_whoever_got_nothing_is_told_of_the_next_job_once(engine: RedisEngine, ear: Ear) -> None:
    await asked(engine)
    await engine.create([a_new_job()])
    await engine.create([a_new_job()])
    assert ear.rings() == [TYPE]


async def test_whoever_got_less_than_he_asked_for_is_told_of_the_next_job(engine: RedisEngine, ear: Ear) -> None:
    await engine.create([a_new_job()])
    assert len((await asked(engine, 2)).jobs) == 1
    await engine.create([a_new_job()])
    assert ear.rings() == [TYPE]


async def test_whoever_got_less_of_one_type_is_told_of_that_one_alone(engine: RedisEngine, ear: Ear) -> None:
    await engine.create([a_new_job(type="full"), a_new_job(type="short")])
    await engine.activate([Demand("full", WORKER, 1), Demand("short", WORKER, 2)])
    await engine.create([a_new_job(type="full"), a_new_job(type="short")])
    assert ear.rings() == ["short"]


async def test_whoever_settled_and_got_less_than_he_asked_for_is_told(engine: RedisEngine, ear: Ear) -> None:
    job = await a_processing_job(engine)
    await engine.create([a_new_job()])
    await engine.settle([Complete(job.key, 1)], [Demand(TYPE, WORKER, 2)])
    await engine.create([a_new_job()])
    assert ear.rings() == [TYPE]


async def test_whoever_got_all_that_he_asked_for_is_told_nothing(engine: RedisEngine, ear: Ear) -> None:
    await engine.create([a_new_job()])
    await asked(engine, 1)
    await engine.create([a_new_job()])
    assert ear.rings() == []


@pytest.mark.parametrize(
    "outcome", [Release(0, 1), Failed(0, 1, "boom", backoff_ms=500), Complete(0, 1, None, (a_new_job(),))]
)
async def test_nobody_is_told_of_work_that_he_has_made_and_seen_himself(
    engine: RedisEngine, ear: Ear, outcome: Release
) -> None:
    job = await a_processing_job(engine)
    await engine.settle([outcome._replace(key=job.key)], [Demand(TYPE, WORKER, 2)])
    assert ear.rings() == []


async def test_whoever_waited_before_is_told_of_what_another_left_over(engine: RedisEngine, ear: Ear) -> None:
    job = await a_processing_job(engine)
    await asked(engine)
    await engine.settle([Release(job.key, 1)], [Demand(TYPE, WORKER, 2)])
    assert ear.rings() == [TYPE]
