"""Jobs created on a server from the event loop in which the application was opened: without a hop, if possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from everwork import Everwork
from everwork.exceptions import EngineUnavailable
from everwork.service.service import JobService
from tests.stores import ENGINES, url_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from everwork.core.job import NewJob
    from everwork.core.leasing import Created


@pytest.fixture(params=[name for name in ENGINES if name != "sqlite"])
def server_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store on a server that nobody has opened yet."""
    return url_of(request.param, tmp_path)


async def test_opening_the_application_opens_the_engine_of_its_loop(server_url: str) -> None:
    async with Everwork(server_url) as app:
        assert app._host._loop_engines is not None
        assert app._host._loop_engines.opened() is not None


async def has_own_engine(app: Everwork) -> bool:
    """Whether this loop has an engine of its own."""
    assert app._host._loop_engines is not None
    return await app._host._loop_engines.service() is not None


async def test_a_loop_whose_engine_could_not_be_opened_gets_one_later(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, app = JobService.open, Everwork(server_url)
    await app._host.open()

    async def fail(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("the server is away")

    monkeypatch.setattr(JobService, "open", fail)
    async with app:
        assert [await app.enqueue("work"), await has_own_engine(app)] == [1, False]
        monkeypatch.setattr(JobService, "open", opens)
        assert [await app.enqueue("work"), await has_own_engine(app)] == [2, True]


async def test_a_create_that_may_have_succeeded_is_repeated_only_with_a_dedupe_key(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Everwork(server_url) as app:
        assert app._host._loop_engines is not None
        service = app._host._loop_engines.opened()
        assert service is not None
        create, lost = service._engine.create, list[int]()

        async def lossy(jobs: Sequence[NewJob]) -> list[Created]:
            created = await create(jobs)
            if len(lost) == jobs[0].priority:
                lost.append(created[0].key)
                raise EngineUnavailable("the connection was lost")
            return created

        monkeypatch.setattr(service._creates, "_flush", lossy)
        with pytest.raises(EngineUnavailable):
            await app.enqueue("work")
        assert await app.using(priority=1, dedupe_key="once").enqueue("work") == lost[1]
        assert [job.key async for job in app.list()] == lost[::-1]
