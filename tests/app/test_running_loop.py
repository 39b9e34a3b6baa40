"""Blocking calls where an event loop runs already: refused if they cannot work, reported if they hold it up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everwork import Everwork
from everwork.client import SyncClient
from everwork.exceptions import BadConfiguration


async def test_run_in_a_running_loop_is_refused_with_what_to_write_instead(app: Everwork) -> None:
    with pytest.raises(BadConfiguration, match=r"^app\.run\(\): an event loop .*; use `await app\.work\(\)`$"):
        app.run()
    with pytest.raises(BadConfiguration, match=r"^app\.sync\.run_once\(\): .*; use `await app\.run_once\(\)`$"):
        app.sync.run_once()


async def test_a_sync_call_that_blocks_a_loop_works_and_is_reported_once_with_its_place(
    app: Everwork, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [app.sync.enqueue("greet", name=name) for name in ("ann", "ben")]
    [job] = [app.sync.get(key) for key in keys[:1]]
    assert job.type == "greet"
    [record] = [record for record in caplog.records if "inside a running event loop" in record.message]
    assert (record.levelname, f"{__file__}:{_line_of_the_first_call()}" in record.message) == ("WARNING", True)


def _line_of_the_first_call() -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(at for at, text in enumerate(lines, 1) if "app.sync.enqueue" in text)


async def test_a_sync_call_in_a_thread_without_a_loop_is_not_reported(
    app: Everwork, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(lambda: app.sync.enqueue("greet", name="ann"))
    assert [record for record in caplog.records if "event loop" in record.message] == []


async def test_a_blocking_client_is_reported_too(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with SyncClient(url) as client:
        client.create("greet", {"name": "ann"})
    [record] = [record for record in caplog.records if "inside a running event loop" in record.message]
    assert "SyncClient" in record.message
