"""The public views of a file: after every upgrade, beside the user's own tables, and what they read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.migrate import migrate, migrations
from everwork.engines.sqlite.store_url import StoreUrl
from tests.conformance.observe import every_job
from tests.factories import a_dead_letter, a_pending_job
from tests.sqlite.test_old_store import ROWS
from tests.views import COLUMNS, ask_file, shown_by_views, without_readable_instants

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores import VirtualClock


@pytest.mark.parametrize("version", range(1, max(migrations())))
async def test_a_file_of_every_earlier_version_gets_the_same_views_with_its_jobs(
    file: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    with monkeypatch.context() as older, closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for number in range(max(migrations()), version, -1):  # They come back in their order.
            older.delitem(migrations(), number)
        assert migrate(connection, str(file)) == version
        connection.executescript(ROWS)
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    rows = ask_file(file, "SELECT * FROM jobs ORDER BY key DESC")
    assert [list(row) for row in rows] == [COLUMNS] * 5
    assert without_readable_instants(rows) == await shown_by_views(engine, await every_job(engine))
    await engine.close()


@pytest.mark.parametrize(
    "own",
    [
        "CREATE TABLE Jobs (mine)",
        "CREATE VIEW jobs AS SELECT 7 AS mine",
        "CREATE TABLE t (mine); CREATE INDEX jobs ON t (mine)",
    ],
)
async def test_a_users_own_table_view_or_index_keeps_its_name(file: Path, clock: VirtualClock, own: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(own)
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    dead = await a_dead_letter(engine)
    await engine.close()
    described = "SELECT sql FROM sqlite_master WHERE lower(name) = 'jobs'"
    assert ask_file(file, described) == [{"sql": own.rpartition("; ")[2]}]
    assert [row["key"] for row in ask_file(file, "SELECT key FROM ew_jobs")] == [dead.key]
    assert [row["key"] for row in ask_file(file, "SELECT key FROM dead_letters")] == [dead.key]


async def test_a_user_who_drops_the_short_names_keeps_their_own_table_of_that_name(
    file: Path, clock: VirtualClock
) -> None:
    for own in ("DROP VIEW jobs; DROP VIEW dead_letters; CREATE TABLE jobs (mine)", "INSERT INTO jobs VALUES (7)"):
        engine = SqliteEngine(StoreUrl(str(file)), clock)
        await engine.open()
        await a_pending_job(engine)
        await engine.close()
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript(own)
    assert ask_file(file, "SELECT * FROM jobs") == [{"mine": 7}]


# Plans ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[sqlite3.Connection]:
    """A store with this engine's schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, ":memory:")
    yield connection
    connection.close()


def leaders(store: sqlite3.Connection, sql: str) -> list[str]:
    """What each arm of a query reads first."""
    steps = [str(row[3]) for row in store.execute(f"EXPLAIN QUERY PLAN {sql}")]
    return [step for before, step in pairwise(steps) if before in ("LEFT-MOST SUBQUERY", "UNION ALL")]


LEASED: Final = "SCAN l"
BY_KEY: Final = "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)"
BY_CORRELATION: Final = "SEARCH j USING INDEX ew_correlation (correlation_id=?)"
BY_TYPE: Final = "SEARCH q USING COVERING INDEX sqlite_autoindex_ew_queue_1 (type=?)"


@pytest.mark.parametrize(
    ("where", "leader"),
    [("key = 7", BY_KEY), ("correlation_id = 'c'", BY_CORRELATION), ("type = 't'", BY_TYPE)],
)
@pytest.mark.parametrize("view", ["jobs", "ew_jobs"])
def test_a_question_by_key_correlation_id_or_type_reads_no_table_from_end_to_end_but_what_is_leased(
    store: sqlite3.Connection, view: str, where: str, leader: str
) -> None:
    found = leaders(store, f"SELECT * FROM {view} WHERE {where}")
    assert [found[number] for number in (0, 1, 3, 4, 5)] == [leader] * 5
    assert found[2] in (LEASED, leader)


MANY: Final = 20_000
FILLED: Final = f"""
INSERT INTO ew_type (name) VALUES ('t');
INSERT INTO ew_queue (id, type, grp, solo) VALUES (1, 't', '', '');
WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < {MANY})
INSERT INTO ew_job (key, queue, lane, priority, run_at_ms, created_at_ms, max_attempts, variables)
  SELECT k, 1, '', 0, k, k, 5, '{{}}' FROM n;
INSERT INTO ew_finished SELECT 1, 3, key, 1, 1, 5, key, key, 'w', NULL, NULL, NULL FROM ew_job WHERE key > 40;
INSERT INTO ew_finished SELECT 1, 4 + key % 2, key, 1, 1, 5, key, key, 'w', 'fail', 'boom', NULL
  FROM ew_job WHERE key <= 20;
INSERT INTO ew_ready SELECT 1, '', 0, key, key, 0, 0, 5 FROM ew_job WHERE key > 20 AND key <= 30;
INSERT INTO ew_leased SELECT key, 1, '', 0, key, 1, 1, 5, key, key, 'w' FROM ew_job WHERE key > 30 AND key <= 40;
"""
STEPS_MAX: Final = 30_000
"""Of SQLite's virtual machine: ten times what a few rows need, a tenth of what a walk through all jobs would."""


@pytest.mark.parametrize("more", ["", " AND type = 't'", " ORDER BY updated_at DESC"])
@pytest.mark.parametrize("state", ["pending", "processing", "failed", "cancelled"])
def test_a_question_by_state_costs_nothing_for_jobs_in_other_states(
    store: sqlite3.Connection, state: str, more: str
) -> None:
    store.executescript(FILLED)
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 100

    store.set_progress_handler(count, 100)
    assert len(store.execute(f"SELECT * FROM jobs WHERE state = '{state}'{more}").fetchall()) == 10
    assert 0 < steps < STEPS_MAX
