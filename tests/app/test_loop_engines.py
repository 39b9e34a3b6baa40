"""Jobs created on a server from the event loop in which the application was opened: without a hop, if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from everwork import Everwork
from everwork.exceptions import EngineUnavailable
from everwork.service.service import JobService
from tests.stores import ENGINES, url_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[name for name in ENGINES if name != "sqlite"])
def server_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store on a server that nobody has opened yet."""
    return url_of(request.param, tmp_path)


async def has_own_engine(app: Everwork) -> bool:
    """Whether this loop has an engine of its own."""
    assert app._host._loop_engines is not None
    return await app._host._loop_engines.service() is not None


async def test_a_loop_whose_engine_could_not_be_opened_gets_one_later(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Everwork(server_url) as app:
        opens = JobService.open

        async def fail(*_: Any, **__: Any) -> None:
            raise EngineUnavailable("the server is away")

        monkeypatch.setattr(JobService, "open", fail)
        assert [await app.enqueue("work"), await has_own_engine(app)] == [1, False]
        monkeypatch.setattr(JobService, "open", opens)
        assert [await app.enqueue("work"), await has_own_engine(app)] == [2, True]
