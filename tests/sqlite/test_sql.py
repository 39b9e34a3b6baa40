"""The SQL files: statements by name, plans that never scan, migrations without gaps."""

from __future__ import annotations

import inspect
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from everwork.engines import sqlite as package
from everwork.engines.sqlite.migrate import migrate, migrations
from everwork.engines.sqlite.statements import statements

FOLDER = Path(inspect.getfile(package)).parent


def test_every_statement_has_a_name_of_its_own_in_its_file() -> None:
    for file in (FOLDER / "sql").iterdir():
        names = re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE)
        assert len(names) == len(set(names)), file.name
        assert list(statements(file.stem)) == names


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    names = sorted(file.name for file in (FOLDER / "migrations").iterdir() if file.suffix == ".sql")
    assert [int(re.fullmatch(r"(\d{4})_\w+\.sql", name)[1]) for name in names] == list(range(1, len(names) + 1))  # type: ignore[index]
    assert list(migrations()) == list(range(1, len(names) + 1))


@pytest.fixture
def store() -> Iterator[sqlite3.Connection]:
    """A store with this engine's schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, ":memory:")
    yield connection
    connection.close()


def test_a_store_is_migrated_once(store: sqlite3.Connection) -> None:
    newest = migrate(store, ":memory:")
    assert store.execute("SELECT version FROM ew_schema").fetchall() == [(n,) for n in range(1, newest + 1)]


def test_a_migration_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    monkeypatch.setitem(migrations(), 1_000, "CREATE TABLE ew_extra (x);\nINSERT INTO nowhere VALUES (1);\n")
    with pytest.raises(Exception, match="nowhere"):
        migrate(connection, ":memory:")
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


HOT = ["create", "activate", "settle", "extend", "check", "get", "shared", "requeue", "set_retries", "delete", "unpark"]
ALLOWED_STEPS = {
    ("create", "take_keys", "SCAN ew_seq"): "one row",
    ("create", "add_key", "SCAN ew_seq"): "one row",
    ("create", "last_key", "SCAN ew_seq"): "one row",
    ("shared", "take_write_lock", "SCAN ew_seq"): "one row, not even read",
    ("activate", "due_lanes", "USE TEMP B-TREE FOR DISTINCT"): "over a bounded number of due jobs",
    ("activate", "pick_firsts", "SCAN o"): "a bounded number of lanes",
    ("shared", "add_hourly", "SCAN (subquery-2)"): "for a new worker only, over a bounded number of rows of one hour",
    ("settle", "completed_sums", "USE TEMP B-TREE FOR GROUP BY"): "over the jobs of one batch",
}
"""What a plan may do although it looks like a scan, and why."""


def plan(store: sqlite3.Connection, sql: str) -> list[str]:
    """The steps of a statement as SQLite plans them."""
    sql = sql.replace("{tenants}", "").replace("{keys}", "json_each(?1)").replace("{busy}", "busy")
    count = max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0) + len(re.findall(r"\?(?!\d)", sql))
    return [str(row[3]) for row in store.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * count)]


def hot_statements() -> list[tuple[str, str]]:
    """Every statement of the operations that are called per job or per batch."""
    return [(file, name) for file in HOT for name in statements(file)]


@pytest.mark.parametrize(("file", "name"), hot_statements())
def test_a_hot_statement_finds_its_rows_by_key(store: sqlite3.Connection, file: str, name: str) -> None:
    steps = [
        step
        for step in plan(store, statements(file)[name])
        if ("TEMP B-TREE" in step or (step.startswith("SCAN") and "VIRTUAL TABLE" not in step))
        and "CONSTANT ROW" not in step
    ]
    assert [step for step in steps if (file, name, step) not in ALLOWED_STEPS] == []


def test_what_is_allowed_is_still_done(store: sqlite3.Connection) -> None:
    for file, name, step in ALLOWED_STEPS:
        assert step in plan(store, statements(file)[name])


def test_a_pick_reads_the_ready_jobs_in_their_stored_order(store: sqlite3.Connection) -> None:
    assert plan(store, statements("activate")["pick"]) == [
        "SEARCH r USING PRIMARY KEY (queue=? AND lane=?)",
        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
    ]


def test_the_first_jobs_of_many_lanes_are_each_found_by_the_whole_key(store: sqlite3.Connection) -> None:
    assert plan(store, statements("activate")["pick_firsts"]) == [
        "CO-ROUTINE o",
        "SEARCH ew_lane USING INDEX ew_lane_turn (queue=?)",
        "SCAN o",
        "SEARCH r USING PRIMARY KEY (queue=? AND lane=? AND urgency=? AND run_at_ms=? AND key=?) LEFT-JOIN",
        "CORRELATED SCALAR SUBQUERY 3",
        "SEARCH f USING PRIMARY KEY (queue=? AND lane=?)",
        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?) LEFT-JOIN",
        "CORRELATED SCALAR SUBQUERY 1",
        "SEARCH m USING PRIMARY KEY (queue=? AND lane=?)",
    ]


@pytest.mark.parametrize("name", ["lease", "taken"])
def test_a_claim_moves_one_range_of_the_ready_jobs(store: sqlite3.Connection, name: str) -> None:
    [step] = plan(store, statements("activate")[name])
    assert step.startswith("SEARCH ew_ready USING PRIMARY KEY (queue=? AND lane=? AND (urgency,run_at_ms,key)<")


@pytest.mark.parametrize("name", ["turn", "has_lanes", "has_open"])
def test_turns_are_taken_along_their_index_without_a_look_at_the_lanes(store: sqlite3.Connection, name: str) -> None:
    assert "SEARCH ew_lane USING COVERING INDEX ew_lane_turn (queue=?)" in plan(store, statements("activate")[name])


def test_the_first_jobs_that_were_leased_are_deleted_by_their_whole_keys(store: sqlite3.Connection) -> None:
    assert plan(store, statements("activate")["taken_firsts"])[0] == (
        "SEARCH ew_ready USING PRIMARY KEY (queue=? AND lane=? AND urgency=? AND run_at_ms=? AND key=?)"
    )


def test_the_longest_waiting_job_is_looked_for_by_lane_and_priority(store: sqlite3.Connection) -> None:
    sql = statements("oldest")
    assert plan(store, sql["first_ready"]) == ["SEARCH ew_ready USING PRIMARY KEY (queue=?)"]
    assert plan(store, sql["next_ready"]) == [
        "SEARCH ew_ready USING PRIMARY KEY (queue=? AND (lane,urgency,run_at_ms)>(?,?,?))"
    ]
    assert plan(store, sql["due"]) == ["SEARCH ew_future USING PRIMARY KEY (queue=? AND run_at_ms<?)"]


def test_ordered_lists_read_one_range_of_an_index(store: sqlite3.Connection) -> None:
    sql = statements("find")
    [latest] = plan(store, sql["latest"])
    assert latest.startswith(
        "SEARCH ew_finished USING COVERING INDEX ew_failed (queue=? AND (finished_at_ms,key)<(?,?)"
    )
    [scheduled] = plan(store, sql["scheduled"])
    assert scheduled.startswith("SEARCH ew_future USING PRIMARY KEY (queue=? AND (run_at_ms,key)>(?,?)")
    [ready] = plan(store, sql["ready_range"])
    assert ready.startswith("SEARCH ew_ready USING PRIMARY KEY (queue=? AND lane=? AND urgency=? AND (run_at_ms,key)>")


def test_a_list_by_correlation_id_reads_the_matching_entries_of_an_index_in_order(store: sqlite3.Connection) -> None:
    assert plan(store, statements("find")["correlated"]) == [
        "SEARCH ew_job USING COVERING INDEX ew_correlation (correlation_id=? AND rowid<?)"
    ]


def test_a_list_by_dedupe_key_reads_one_entry_of_each_type_and_tenant(store: sqlite3.Connection) -> None:
    assert plan(store, statements("find")["deduped"]) == [
        "SCAN p VIRTUAL TABLE INDEX 1:",
        "SEARCH d USING PRIMARY KEY (type=? AND tenant=? AND dedupe_key=?)",
    ]


def test_a_search_in_variables_reads_the_jobs_by_their_keys(store: sqlite3.Connection) -> None:
    assert plan(store, statements("find")["of_variables"]) == [
        "SCAN k VIRTUAL TABLE INDEX 1:",
        "SEARCH j USING INTEGER PRIMARY KEY (rowid=?)",
    ]


def test_dead_letters_that_come_back_are_read_in_the_order_in_which_they_failed(store: sqlite3.Connection) -> None:
    first, *_ = plan(store, statements("sweep")["dead"])
    assert first.startswith("SEARCH f USING INDEX ew_failed (queue=? AND (finished_at_ms,key)>(?,?)")


def test_the_sweep_walks_finished_jobs_in_order_and_scans_only_what_is_in_flight(
    store: sqlite3.Connection,
) -> None:
    sql = statements("sweep")
    assert plan(store, sql["finished"]) == ["SEARCH ew_finished USING PRIMARY KEY ((queue,state,key)>(?,?,?))"]
    assert plan(store, sql["lapsed"]) == ["SCAN ew_leased"]
    assert "SEARCH ew_expiry USING PRIMARY KEY (expires_at_ms<?)" in plan(store, sql["has_expired"])
