"""A file that the first version has written works with this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from everwork.core import measures
from everwork.core.breaker import BreakerState
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import Oldest
from everwork.core.states import State
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.engines.sqlite.migrate import migrate, migrations
from everwork.engines.sqlite.store_url import StoreUrl
from everwork.engines.values import Swept
from tests.factories import TYPE, a_policy, asked, leased_keys, settled, the_job, the_state
from tests.stores import DAY_MS, HOUR_MS, SECOND_MS, START_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.stores import VirtualClock

OLD_POLICY = '{"retry": {"max_attempts": 2, "base": 7.0}}'
RUNNING, DEAD, WAITING = 1, 2, [3, 4, 5]

LANE = "'<default>' || char(31) || 'k'"
ROWS = f"""
UPDATE ew_seq SET last = 5;
INSERT INTO ew_type (name, policy) VALUES ('{TYPE}', '{OLD_POLICY}');
INSERT INTO ew_queue (id, type, grp, solo) VALUES (1, '{TYPE}', '', {LANE});
INSERT INTO ew_job (key, queue, lane, priority, run_at_ms, created_at_ms, max_attempts, variables)
  SELECT value, 1, {LANE}, 0, {START_MS}, {START_MS}, 2, '{{}}' FROM json_each('[1, 2, 3, 4, 5]');
INSERT INTO ew_leased VALUES (1, 1, {LANE}, 0, {START_MS}, 1, 1, 2, {START_MS}, {START_MS + HOUR_MS}, 'w0');
INSERT INTO ew_finished VALUES (1, 4, 2, 2, 2, 2, {START_MS}, {START_MS}, 'w0', 'fail', 'boom', NULL);
INSERT INTO ew_history (key, attempt, step, kind, at_ms, worker, error, activated_at_ms, retry_at_ms)
  VALUES (2, 2, 0, 'fail', {START_MS}, 'w0', 'boom', {START_MS}, NULL);
INSERT INTO ew_ready SELECT 1, {LANE}, 0, {START_MS}, value, 0, 0, 2 FROM json_each('[3, 4, 5]');
INSERT INTO ew_tally SELECT 1, '<default>', key + 1, value FROM json_each('[3, 1, 0, 1]');
"""


@pytest.fixture
async def old(file: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteEngine]:
    """An engine on a file of version 1, in which one job runs, one is dead, and three wait."""
    with monkeypatch.context() as first, closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for number in sorted(set(migrations()) - {1}, reverse=True):  # They come back in their order.
            first.delitem(migrations(), number)
        assert migrate(connection, str(file)) == 1
        connection.executescript(ROWS)
    engine = SqliteEngine(StoreUrl(str(file)), clock)
    await engine.open()
    yield engine
    await engine.close()


async def test_jobs_of_an_old_store_run_by_the_policy_that_it_holds(old: SqliteEngine, clock: VirtualClock) -> None:
    schema = await old.schema()
    assert schema.stored == schema.newest
    await settled(old, Failed(RUNNING, 1, "boom", traceback="here"))
    assert (await the_job(old, RUNNING)).run_at_ms == clock.now_ms + 7 * SECOND_MS
    assert [(await old.history(key))[0].traceback for key in (DEAD, RUNNING)] == [None, "here"]
    assert await leased_keys(old) == WAITING
    await old.settle([Complete(key, 1) for key in WAITING])
    assert [await the_state(old, key) for key in WAITING] == [State.COMPLETED] * 3


async def test_attempts_that_an_old_version_began_are_measured(old: SqliteEngine, clock: VirtualClock) -> None:
    assert await old.measures(24) == []
    assert await old.oldest() == [Oldest(TYPE, "", START_MS)]
    clock.advance(ms=SECOND_MS)
    await settled(old, Complete(RUNNING, 1))
    assert [what for _, _, what, _ in await old.measures(1)] == [measures.execution(7), measures.wait(0)]


async def test_limits_count_what_an_old_version_has_leased(old: SqliteEngine) -> None:
    await a_policy(old, max_running_per_key=2)
    assert len((await asked(old, 5)).jobs) == 1
    await a_policy(old, max_running=3)
    assert len((await asked(old, 5)).jobs) == 1
    await settled(old, Complete(RUNNING, 1))
    assert len((await asked(old, 5)).jobs) == 1


async def test_dead_letters_and_failures_of_an_old_store_obey_new_policies(
    old: SqliteEngine, clock: VirtualClock
) -> None:
    await a_policy(old, failed_job_retry_hours=24.0, breaker_failures=1)
    await settled(old, Failed(RUNNING, 1, "boom"))
    [info] = await old.types()
    assert info.breaker is BreakerState.OPEN
    clock.advance(ms=DAY_MS)
    assert await old.sweep("s") == Swept(requeued=1)
    assert await the_state(old, DEAD) == State.PENDING
