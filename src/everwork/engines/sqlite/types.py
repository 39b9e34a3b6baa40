"""Deletes types: one on request, or those that are unused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from everwork.core.leasing import Verdict
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("registry")


class TypeUse(NamedTuple):
    """Whether and how a type is used: a row of the statement `uses`."""

    name: str
    policy: str | None
    is_set_up: int
    asked_at_ms: int | None
    queues: str

    @property
    def queue_ids(self) -> list[int]:
        """The queues of all groups, dropped ones included."""
        return list(json.loads(self.queues))


def delete_type(tx: Transaction, type: str) -> Verdict:
    """Delete a type that has no jobs."""
    uses = _uses(tx, [type])
    if not uses:
        return Verdict.NOT_FOUND
    if _queues_with_jobs(tx, uses):
        return Verdict.WRONG_STATE
    _delete(tx, uses)
    return Verdict.ACCEPTED


def forget_types(tx: Transaction, policies: Mapping[str, str | None], unused_ms: int) -> list[str]:
    """Delete unused types."""
    before_ms = tx.now_ms - unused_ms
    idle = [
        use
        for use in _uses(tx, list(policies))
        if use.policy == policies[use.name]
        and not use.is_set_up
        and (use.asked_at_ms is None or use.asked_at_ms <= before_ms)
    ]
    busy = _queues_with_jobs(tx, idle)
    # A type that was never requested has no statistics.
    busy |= _queues_with_statistics(tx, [use for use in idle if use.asked_at_ms is not None])
    unused = [use for use in idle if busy.isdisjoint(use.queue_ids)]
    _delete(tx, unused)
    return [use.name for use in unused]


def _uses(tx: Transaction, types: Sequence[str]) -> list[TypeUse]:
    tx.flush()  # The counts of this transaction are read below.
    return [TypeUse._make(row) for row in tx.cursor.execute(SQL["uses"], (json.dumps(types),)).fetchall()]


def _queues_with_jobs(tx: Transaction, uses: Sequence[TypeUse]) -> set[int]:
    return {queue for (queue,) in tx.cursor.execute(SQL["queues_with_jobs"], (_queues(uses),)).fetchall()}


def _queues_with_statistics(tx: Transaction, uses: Sequence[TypeUse]) -> set[int]:
    return {queue for (queue,) in tx.cursor.execute(SQL["queues_with_statistics"], (_queues(uses),)).fetchall()}


def _delete(tx: Transaction, uses: Sequence[TypeUse]) -> None:
    queues, names = _queues(uses), json.dumps([use.name for use in uses])
    for table in ("hourly", "measure", "lane", "tally", "delta", "parked", "queue"):
        tx.cursor.execute(SQL[f"delete_{table}"], (queues,))
    tx.cursor.execute(SQL["delete_owners"], (names,))
    tx.cursor.execute(SQL["delete_types"], (names,))
    for use in uses:
        tx.forget_type(use.name)
    tx.limits.forget()


def _queues(uses: Sequence[TypeUse]) -> str:
    return json.dumps([queue for use in uses for queue in use.queue_ids])
