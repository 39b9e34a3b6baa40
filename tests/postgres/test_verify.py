"""What the check of a schema finds. The test server has no amcheck, so a function imitates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.engines.postgres.engine import PostgresEngine
from everwork.engines.postgres.verify import _of_indexes
from tests.factories import a_pending_job

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

CHECK = """CREATE FUNCTION {schema}.bt_index_check(index regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF index::text LIKE '%live%' THEN
    RAISE EXCEPTION 'item order invariant violated' USING ERRCODE = '{code}';
  END IF;
END $$"""


async def test_rows_without_a_job_are_counted_and_a_missing_amcheck_is_a_note(engine: Engine) -> None:
    assert isinstance(engine, PostgresEngine)
    job = await a_pending_job(engine)
    await engine._store.connections.fetch(f"DELETE FROM {engine._url.schema}.job WHERE key = {job.key}")
    found = [(defect.text, defect.is_note) for defect in await engine.verify()]
    note = "indexes were not checked: the extension amcheck is not installed"
    assert found == [("1 row belongs to jobs that do not exist", False), (note, True)]
    await engine._store.connections.fetch(f"DELETE FROM {engine._url.schema}.live")


@pytest.mark.parametrize(
    ("code", "text", "is_note"),
    [
        ("XX002", "is damaged: item order invariant violated", False),
        ("42501", "indexes were not checked: this user may not call bt_index_check", True),
    ],
)
async def test_each_index_is_checked_by_amcheck(engine: Engine, code: str, text: str, is_note: bool) -> None:
    assert isinstance(engine, PostgresEngine)
    store, schema = engine._store, engine._url.schema
    sql = {**store.sql("verify"), "has_amcheck": f"SELECT '{schema}'"}
    async with store.connections.acquired() as connection:
        await connection.execute(CHECK.format(schema=schema, code=code))
        defects = await _of_indexes(connection, sql)
        await connection.execute(f"DROP FUNCTION {schema}.bt_index_check")
    assert defects
    assert all(text in defect.text and defect.is_note is is_note for defect in defects)
