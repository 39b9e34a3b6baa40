"""The sweep's vacuum: after many finished jobs, and less often while a great number of others wait."""

from __future__ import annotations

import pytest

from everwork.engines.postgres import sweep
from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.postgres.sweep import VACUUM_EVERY_JOBS, jobs_between_vacuums
from tests.postgres.big_store import in_schema
from tests.postgres.test_gates import drain


@pytest.mark.parametrize(
    ("live", "jobs"), [(0, VACUUM_EVERY_JOBS), (1_000_000, VACUUM_EVERY_JOBS), (10_000_000, 100_000)]
)
def test_the_more_jobs_wait_the_less_often_their_indexes_are_read(live: int, jobs: int) -> None:
    assert jobs_between_vacuums(live) == jobs


@pytest.mark.parametrize(("live", "is_vacuumed"), [(-1, True), (400, True), (4_000_000, False)])
async def test_dead_rows_are_vacuumed_once_enough_jobs_have_finished(
    url: str, engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch, live: int, is_vacuumed: bool
) -> None:
    monkeypatch.setattr(sweep, "FOLD_FROM", 1)
    monkeypatch.setattr(sweep, "VACUUM_EVERY_JOBS", 20)
    monkeypatch.setattr(sweep, "VACUUM_JOBS_PER_LIVE", 1)
    await drain(engine, 30)
    with in_schema(url) as connection:
        connection.execute(f"UPDATE pg_class SET reltuples = {live} WHERE oid = 'live'::regclass".encode())
    await engine.sweep("s")
    state = engine._store.sweep_state
    assert (state.vacuuming is not None, state.unvacuumed) == (is_vacuumed, 0 if is_vacuumed else 30)
    if state.vacuuming is not None:
        await state.vacuuming
