"""Dead letters that come back by themselves, as the policies of their types say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everwork.core.limits import SWEEP_STEP_MAX
from everwork.engines.postgres import change
from everwork.engines.postgres.parts import Parts
from everwork.engines.rules import BY_ITSELF


class Due(NamedTuple):
    """A queue, after how long its dead letters come back and how often, and the last of them that was looked at."""

    queue: int
    requeue_ms: int
    rounds: int
    at_ms: int
    key: int


async def requeue_dead(parts: Parts, due: Sequence[Due], now_ms: int) -> tuple[int, bool]:
    """Bring back what was dead long enough; how many, and whether there may be more.

    Each dead letter is looked at once by each rule, when its time has come: those that may not come back cost nothing.
    """
    columns = _columns([(one.queue, one.at_ms, one.key, now_ms - one.requeue_ms) for one in due])
    rows = await parts.connections.look(parts.sql("sweep")["dead"], *columns, SWEEP_STEP_MAX)
    if not rows:
        return 0, False
    rounds = {one.queue: one.rounds for one in due}
    keys = [key for queue, _, key, past in rows if past < rounds[queue]]
    back = await change.requeue_rows(parts, keys, said=BY_ITSELF) if keys else []
    ends = {queue: (at_ms, key) for queue, at_ms, key, _ in rows}
    seen = [(one.queue, one.at_ms, one.key, *ends[one.queue]) for one in due if one.queue in ends]
    await parts.connections.rows(parts.sql("sweep")["looked_back"], *_columns(seen))
    return len(back), len(rows) == SWEEP_STEP_MAX


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
