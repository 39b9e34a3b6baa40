"""The commands on every engine: the same words, whatever the URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from everwork.core.states import State
from everwork.engines.open import open_engine
from tests.factories import a_dead_letter, a_pending_job, a_scheduled_job, the_job
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """A store that nobody has opened yet."""
    return url_of(engine_name, tmp_path)


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    """The test's own engine on that store."""
    opened = open_engine(url)
    await opened.open()
    yield opened
    await opened.close()


def test_a_job_that_was_created_is_listed_and_counted(cli: Cli, url: str) -> None:
    job = cli("jobs", "create", "email-send", "--var", "to=ann", "--json", "--engine", url).json
    [listed] = cli("jobs", "list", "--json", "--engine", url).json["jobs"]
    assert (listed["key"], listed["type"], listed["state"]) == (job["key"], "email-send", "pending")
    assert cli("stats", "--engine", url).code == 0


async def test_get_shows_what_is_known_of_a_job(cli: Cli, url: str, engine: Engine) -> None:
    job = await a_scheduled_job(engine)
    shown = cli("jobs", "get", str(job.key), "--json", EVERWORK_ENGINE=url).json
    assert (shown["key"], shown["state"]) == (str(job.key), "pending")


@pytest.mark.parametrize("command", ["cancel", "run-now"])
async def test_a_pending_job_is_changed(cli: Cli, url: str, engine: Engine, command: str) -> None:
    job = await a_pending_job(engine, delay_ms=60_000)
    assert cli("jobs", command, str(job.key), "--engine", url).code == 0
    changed = await the_job(engine, job.key)
    assert (changed.state is State.CANCELLED) == (command == "cancel")
    assert (changed.run_at_ms < job.run_at_ms) == (command == "run-now")


async def test_a_dead_letter_is_requeued(cli: Cli, url: str, engine: Engine) -> None:
    job = await a_dead_letter(engine)
    assert cli("jobs", "requeue", str(job.key), "--engine", url).code == 0
    assert (await the_job(engine, job.key)).state is State.PENDING
