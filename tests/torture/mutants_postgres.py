"""Ways to break the PostgreSQL engine: the text of its functions and statements, and when a transaction ends.

Functions live in the schema, and whoever opens a store first writes them: a mutant must be applied before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

from everwork.engines import rules
from everwork.engines import rules as judged
from everwork.engines.postgres import connections, registry, settle, statements
from tests.torture import mutants
from tests.torture.replacing import replace_source


def replace_text(file: str, old: str, new: str) -> None:
    """Change the text of a file of functions or statements."""
    text = (files(statements.__package__ or "") / file).read_text("utf-8")
    assert old in text, f"{file}: {old!r} is no longer there"
    sound = statements.filled

    def filled(given: str, schema: str) -> str:
        return sound(given.replace(old, new) if text.find(given) >= 0 else given, schema)

    vars(statements)["filled"] = filled


def _drop_attempt_check() -> None:
    replace_text("functions/complete.sql", "AND (done->(j.key::text)->>0)::int IN (j.attempt, 0)", "")


def _ack_before_commit() -> None:
    """Every statement answers inside a transaction of its own, which ends a moment later."""

    async def fetch(self: Any, sql: str, *parameters: object) -> list[Any]:
        connection = await connections.connect(self._url)
        transaction = connection.transaction()
        await transaction.start()
        answer: list[Any] = await connection.fetch(sql, *parameters)
        self._late = asyncio.get_running_loop().create_task(_commit_late(connection, transaction))
        return answer

    connections.Connections.fetch = fetch  # type: ignore[method-assign]


async def _commit_late(connection: Any, transaction: Any) -> None:
    await asyncio.sleep(0.02)
    await transaction.commit()
    await connection.close()


def _no_attempt_on_crash() -> None:
    counted = "run_at_ms = at_ms + (ended->(j.key::text)->>'b')::bigint,"
    uncounted = "attempts = j.attempts - CASE WHEN lapsed THEN 1 ELSE 0 END,"
    replace_text("functions/settle.sql", counted, f"{counted} {uncounted}")


def _release_without_state_check() -> None:
    """Whatever is finished goes back to pending when somebody releases it."""
    begin = "BEGIN\n  WITH held AS MATERIALIZED (\n    SELECT j.key, j.attempt, j.worker"
    columns = "key, run_at_ms, activated_at_ms, queue_id, lane_id, attempt, rank, attempts, max_attempts, worker"
    revive = f"""BEGIN
      WITH gone AS (
        DELETE FROM finished WHERE key = ANY(ARRAY(SELECT k::bigint FROM jsonb_object_keys(back) k)) RETURNING *)
      INSERT INTO live ({columns}, state) SELECT {columns}, 2 FROM gone;"""
    replace_text("functions/settle.sql", begin, begin.replace("BEGIN", revive, 1))


def _sweep_without_horizon() -> None:
    replace_text("sql/sweep.sql", "l.lease_until_ms <= {schema}.now_ms($1)", "{schema}.now_ms($1) IS NOT NULL")
    replace_text("functions/settle.sql", "AND j.lease_until_ms <= at_ms", "")


def _counter_outside_transaction() -> None:
    """The counts of created jobs are written by a second transaction."""
    counted = "  INSERT INTO count_delta (queue_id, tenant, pending)\n  SELECT l.queue_id, l.tenant, sum(p.n) FROM"
    uncounted = (
        "  INSERT INTO count_delta (queue_id, tenant, pending)\n  SELECT l.queue_id, l.tenant, 0 * sum(p.n) FROM"
    )
    replace_text("functions/create.sql", counted, uncounted)
    counted = "(queue_id, tenant, pending) VALUES (place.queue, whose, 1)"
    replace_text("functions/create_one.sql", counted, counted.replace("1)", "0)"))
    sound = connections.Connections.fetch

    async def fetch(self: Any, sql: str, *parameters: object) -> list[Any]:
        answer = await sound(self, sql, *parameters)
        if "create_jobs" in sql:
            await sound(self, _COUNT_CREATED.replace("{schema}", self._url.schema), answer[0]["fresh"])
        if "create_one" in sql and answer[0]["new_key"]:
            await sound(self, _COUNT_CREATED.replace("{schema}", self._url.schema), [answer[0]["new_key"]])
        return answer

    connections.Connections.fetch = fetch  # type: ignore[method-assign]


_COUNT_CREATED: Final = """
    INSERT INTO {schema}.count_delta (queue_id, tenant, pending)
    SELECT j.queue_id, l.tenant, count(*) FROM {schema}.job j JOIN {schema}.lane l ON l.id = j.lane_id
    WHERE j.key = ANY($1) OR j.copy_of = ANY($1) GROUP BY 1, 2"""


def _attempt_reused_after_release() -> None:
    counted = "attempts = j.attempts - 1,"
    replace_text("functions/settle.sql", counted, f"attempt = j.attempt - 1, {counted}")


def _attempt_reused_after_requeue() -> None:
    placed = "j.expires_at_ms, g.queue_id, g.lane_id, g.attempt, 1, g.rank"
    replace_text("sql/requeue.sql", placed, placed.replace("g.attempt,", "0,"))


def _dedupe_ignored() -> None:
    replaced = "ON CONFLICT (type, tenant, dedupe_key) DO UPDATE SET key = excluded.key"
    replace_text("functions/create.sql", "ON CONFLICT DO NOTHING", replaced)


def _events_without_completion() -> None:
    replace_text("functions/complete.sql", " WHERE (e->>'f')::bigint = ANY(accepted)", "")


def _repeat_forgotten() -> None:
    replace_source(rules, "refused", "Judged(Verdict.REPEATED, state)", "Judged(Verdict.LEASE_LOST, state)")
    vars(settle)["refused"] = rules.refused


def _mark_not_guarded() -> None:
    replace_source(judged, "passages", "passes = fire.point_ms > mark.last_ms", "passes = True")
    vars(registry)["passages"] = judged.passages


def _handed_without_lease() -> None:
    """A create sends its job to the waiting worker, and stores it as pending, so that others take it, too."""
    sent = "PERFORM pg_notify('everwork_' || place.secret, message);"
    replace_text("functions/create_one.sql", "is_handed := FOUND;", sent)


def _handed_for_good() -> None:
    """The lease of a job that was handed over does not expire: nothing takes the job back from a dead worker."""
    granted = "VALUES (new_key, at_ms, at_ms, at_ms + place.lease_ms, place.queue"
    replace_text("functions/create_one.sql", granted, granted.replace("at_ms + place.lease_ms", "2 * at_ms"))


MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    mutants.DROP_ATTEMPT_CHECK: _drop_attempt_check,
    mutants.ACK_BEFORE_COMMIT: _ack_before_commit,
    mutants.NO_ATTEMPT_ON_CRASH: _no_attempt_on_crash,
    mutants.RELEASE_WITHOUT_STATE_CHECK: _release_without_state_check,
    mutants.SWEEP_WITHOUT_HORIZON: _sweep_without_horizon,
    mutants.COUNTER_OUTSIDE_TRANSACTION: _counter_outside_transaction,
    mutants.ATTEMPT_REUSED_AFTER_RELEASE: _attempt_reused_after_release,
    mutants.ATTEMPT_REUSED_AFTER_REQUEUE: _attempt_reused_after_requeue,
    mutants.DEDUPE_IGNORED: _dedupe_ignored,
    mutants.EVENTS_WITHOUT_COMPLETION: _events_without_completion,
    mutants.REPEAT_FORGOTTEN: _repeat_forgotten,
    mutants.MARK_NOT_GUARDED: _mark_not_guarded,
    mutants.HANDED_WITHOUT_LEASE: _handed_without_lease,
    mutants.HANDED_FOR_GOOD: _handed_for_good,
}
