"""The spool of a server: its metrics, and what the dashboard says about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everwork.core.job import NewJob
from everwork.core.outcome import Complete
from everwork.server.metrics import spool_text
from everwork.spool.contents import SpoolStatus
from everwork.spool.courier import Turn
from everwork.spool.file import SpoolCounts, SpoolFile
from everwork.spool.outbox import Outbox
from everwork.spool.settings import Offline, Spool
from tests.server.http.serving import DEADLINE_S, Rest
from tests.server.http.ui.visiting import visiting
from tests.server.test_metrics import parsed
from tests.stores import url_of


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    found = Offline.of(Spool(str(tmp_path / "spool.db")), url_of("sqlite", tmp_path))
    assert found is not None
    return found


@pytest.fixture
def turn(offline: Offline) -> Iterator[Turn]:
    """The right to deliver, which the server does not have until it is given back."""
    taken = Turn(offline.spool.path)
    assert taken.take()
    yield taken
    taken.give_back()


@pytest.fixture
async def spool(local: Rest, offline: Offline, turn: Turn) -> AsyncIterator[SpoolFile]:
    """The server's spool, which another process seems to deliver."""
    local.service.outbox = Outbox(offline, local.service)
    await local.service.outbox.open()
    file = SpoolFile(*offline)
    yield file
    file.close()


async def scraped(rest: Rest) -> dict[tuple[str, ...], float]:
    return parsed((await rest("GET", "/metrics")).text)


async def test_metrics_of_a_server_with_a_spool_say_how_it_stands(local: Rest, spool: SpoolFile) -> None:
    spool.keep_jobs([NewJob("work")] * 3)
    spool.set_aside([1], "refused")
    spool.keep_outcomes([Complete(5, 1)])
    found = await scraped(local)
    assert found["everwork_spool_waiting", "job"] == 2
    assert found["everwork_spool_waiting", "outcome"] == 1
    assert found["everwork_spool_aside",] == 1
    assert 0 < found["everwork_spool_bytes",] < found["everwork_spool_max_bytes",] == 268_435_456
    assert found["everwork_spool_oldest_seconds",] >= 0
    assert found["everwork_spool_delivered_total", "job"] == 0
    assert found["everwork_spool_away",] == 0


async def test_metrics_count_what_was_delivered(local: Rest, spool: SpoolFile, turn: Turn) -> None:
    spool.keep_jobs([NewJob("work")] * 3)
    turn.give_back()
    async with asyncio.timeout(DEADLINE_S):
        while (found := await scraped(local))["everwork_spool_waiting", "job"]:
            pass
    assert found["everwork_spool_delivered_total", "job"] == 3


def test_the_page_about_offline_mode_names_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "offline.md").read_text("utf-8")
    text = spool_text(SpoolStatus("", "", SpoolCounts(), 0, 0))
    assert set(re.findall(r"`(everwork_spool_\w+)`", page)) == set(re.findall(r"# TYPE (\w+)", text))


async def test_a_server_without_a_spool_has_no_such_metrics(local: Rest) -> None:
    assert not any(name[0].startswith("everwork_spool") for name in await scraped(local))


async def test_the_dashboard_says_what_waits_in_the_spool_and_what_is_set_aside(local: Rest, spool: SpoolFile) -> None:
    async with visiting(local) as visitor:
        assert "Spool of this server" not in await visitor.page("/ui")
        spool.keep_jobs([NewJob("work")] * 3)
        spool.set_aside([1], "refused")
        assert "Spool of this server: 2 waiting for delivery, the oldest for" in await visitor.page("/ui")
        settings = await visitor.page("/ui/settings")
        assert "2 jobs and 0 outcomes waiting, 1 set aside" in settings
        assert "1 entry is set aside in the spool" in settings


async def test_the_dashboard_of_a_server_without_a_spool_says_nothing(local: Rest) -> None:
    async with visiting(local) as visitor:
        assert "Spool" not in await visitor.page("/ui")
        assert "<dt>Spool</dt>" not in await visitor.page("/ui/settings")
