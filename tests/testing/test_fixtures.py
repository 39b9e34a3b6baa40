"""The fixture for coroutines; those for others are in the manual's example."""

from __future__ import annotations

import asyncio

import pytest

from everwork import Everwork
from everwork.testing import Stage, rehearse
from tests.testing.applications import Herald


@pytest.fixture
def everwork_app(app: Everwork) -> list[object]:
    return [app, Herald]


async def test_a_coroutine_gets_a_stage_with_everything_on_it(everwork_stage: Stage) -> None:
    Herald.told.clear()
    await everwork_stage.app.enqueue("news", text="hear, hear")
    await everwork_stage.app.enqueue("letter-send", order=7)
    assert [run.type for run in await everwork_stage.drain()] == ["letter-send", "news"]
    assert Herald.told == ["startup", "hear, hear"]


def test_workers_are_shut_down_when_the_test_is_over() -> None:
    with rehearse(Herald).awaited() as stage:
        asyncio.run(stage.drain(hours=1))
    assert Herald.told[-2:] == ["the hour", "shutdown"]
