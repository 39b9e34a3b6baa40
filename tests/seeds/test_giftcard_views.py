"""Public SQL views: `jobs` and `dead_letters`, for people who ask the store by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.outcome import Failed
from everwork.core.queries import JobFilter
from everwork.engines.portions import NARROW_STEP
from tests.conformance.lives import every_stage
from tests.conformance.observe import every_job
from tests.factories import a_dead_letter, a_new_job, a_pending_job, a_processing_job, asked, settled
from tests.stores import SECOND_MS
from tests.views import COLUMNS, SQL_ENGINES, ask, shown_by_views, without_readable_instants

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

pytestmark = pytest.mark.parametrize("engine_name", SQL_ENGINES, indirect=True)


async def test_the_view_jobs_shows_every_job_as_the_engine_does(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    await every_stage(engine, clock)
    rows = ask(engine_name, tmp_path, "SELECT * FROM jobs ORDER BY key DESC")
    assert [list(row) for row in rows] == [COLUMNS] * len(rows)
    assert without_readable_instants(rows) == await shown_by_views(engine, await every_job(engine))


async def test_the_view_dead_letters_shows_failed_jobs_with_the_same_columns(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    await every_stage(engine, clock)
    dead = ask(engine_name, tmp_path, "SELECT * FROM dead_letters ORDER BY key")
    assert dead == ask(engine_name, tmp_path, "SELECT * FROM jobs WHERE state = 'failed' ORDER BY key")
    assert {row["ended_by"] for row in dead} == {"fail", "reject", "throw"}


async def test_a_view_with_the_users_own_names_answers_what_waits_and_what_is_dead(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    waiting = await a_processing_job(engine, type="mail", correlation_id="KATE1520")
    await settled(engine, Failed(waiting.key, 1, "duplicate personal_code", backoff_ms=5 * SECOND_MS))
    first, second = await a_dead_letter(engine, error="first"), None
    clock.advance(seconds=60)
    second = await a_dead_letter(engine, error="second")
    as_cards = """SELECT key AS id, type AS stage, CASE state WHEN 'pending' THEN 'queued' WHEN 'failed' THEN 'error'
        ELSE state END AS status, run_at AS scheduled_at, attempts, max_attempts, last_error, correlation_id, updated_at
        FROM jobs"""
    asked = "SELECT id, correlation_id, attempts, last_error FROM ({}) c WHERE status = '{}' ORDER BY {}"
    queued = ask(engine_name, tmp_path, asked.format(as_cards, "queued", "scheduled_at ASC"))
    assert queued == [
        {
            "id": waiting.key,
            "correlation_id": "KATE1520",
            "attempts": 1,
            "last_error": "duplicate personal_code",
        }
    ]
    dead = ask(engine_name, tmp_path, asked.format(as_cards, "error", "updated_at DESC"))
    assert [row["id"] for row in dead] == [second.key, first.key]


async def test_updated_at_is_the_latest_change_of_a_job(
    engine: Engine, engine_name: str, tmp_path: Path, clock: VirtualClock
) -> None:
    job = await a_pending_job(engine)
    seen = []
    for change in (
        lambda: asked(engine, 1),
        lambda: engine.settle([Failed(job.key, 1, "boom", backoff_ms=SECOND_MS)]),
        lambda: engine.requeue([job.key], waiting=True),
        lambda: engine.cancel([job.key]),
    ):
        clock.advance(seconds=1)
        await change()
        [row] = ask(engine_name, tmp_path, "SELECT updated_at_ms FROM jobs")
        seen.append(row["updated_at_ms"] == clock.now_ms)
    assert seen == [True] * 4


async def test_the_version_of_the_views_is_readable_by_sql(engine: Engine, engine_name: str, tmp_path: Path) -> None:
    await a_pending_job(engine)
    assert ask(engine_name, tmp_path, "SELECT version FROM ew_views") == [{"version": 1}]


async def test_a_list_by_correlation_id_finds_an_old_job_behind_more_new_ones_than_a_page_scans(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.engines.portions.LIST_SCAN_MAX", 1)
    old = await a_pending_job(engine, correlation_id="KATE1520")
    await engine.create([a_new_job() for _ in range(NARROW_STEP)])
    page = await engine.find(JobFilter(correlation_id="KATE1520"), 10)
    assert ([job.key for job in page.jobs], page.next) == ([old.key], None)
