"""Dead letters that come back by themselves, as the policies of their types say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from everwork.core.limits import SWEEP_STEP_MAX
from everwork.engines.postgres import change
from everwork.engines.postgres.parts import Parts, Seen

BY_ITSELF: Final = "by itself"
"""What the history says of such a requeue."""

Due = tuple[int, int, int]
"""A queue, after how long its dead letters come back, and how often."""


async def requeue_dead(parts: Parts, rules: Iterable[Due], now_ms: int) -> tuple[int, bool]:
    """Bring back what was dead long enough; how many, and whether there may be more.

    Each dead letter is looked at once by each rule, when its time has come: those that may not come back cost nothing.
    """
    seen = {queue: _seen(parts, queue, *rule) for queue, *rule in rules}
    if not seen:
        return 0, False
    wanted = [(queue, one.at_ms, one.key, now_ms - one.requeue_ms) for queue, one in seen.items()]
    columns = (list(column) for column in zip(*wanted, strict=True))
    rows = await parts.connections.look(parts.sql("sweep")["dead"], *columns, SWEEP_STEP_MAX)
    keys = [key for queue, _, key, rounds in rows if rounds < seen[queue].rounds]
    back = await change.requeue_rows(parts, keys, said=BY_ITSELF) if keys else []
    for queue, at_ms, key, _ in rows:
        seen[queue] = seen[queue]._replace(at_ms=at_ms, key=key)
    parts.broom.seen_dead = seen
    return len(back), len(rows) == SWEEP_STEP_MAX


def _seen(parts: Parts, queue: int, requeue_ms: int, rounds: int) -> Seen:
    """How far a queue was looked at; a rule that has changed begins at its first dead letter."""
    before = parts.broom.seen_dead.get(queue)
    if before is not None and before[:2] == (requeue_ms, rounds):
        return before
    return Seen(requeue_ms, rounds)
