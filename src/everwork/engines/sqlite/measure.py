"""How long attempts waited and ran, and of what sort failures were: counted with the step that ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from everwork.core.measures import BUCKETS, bucket_of, execution, failure, wait
from everwork.engines.sqlite.transaction import Transaction

EXECUTIONS: Final = tuple(execution(bucket) for bucket in range(BUCKETS))
WAITS: Final = tuple(wait(bucket) for bucket in range(BUCKETS))


def measure_completed(tx: Transaction, queue: int, names: Sequence[str], durations_ms: str) -> int:
    """Count completed attempts by durations that the store has put together with commas; the sum of these."""
    sum_ms, found = 0, dict[int, int]()
    for text, jobs in _counted(durations_ms):
        duration_ms = int(text)
        if duration_ms > 0:
            sum_ms += duration_ms * jobs
        bucket = bucket_of(duration_ms)
        found[bucket] = found.get(bucket, 0) + jobs
    for bucket, jobs in found.items():
        tx.measured(queue, names[bucket], jobs)
    return sum_ms


def _counted(texts: str) -> Iterable[tuple[str, int]]:
    """Each text with how often it stands there."""
    first, jobs = texts.partition(",")[0], texts.count(",") + 1
    if texts == ",".join([first] * jobs):  # A batch that came and went together: not even taken apart.
        return ((first, jobs),)
    return Counter(texts.split(",")).items()


def measure_failed(tx: Transaction, queue: int, execution_ms: int, wait_ms: int, sort: str) -> None:
    """Count an attempt that failed by its duration, its wait, and the sort of its failure."""
    tx.measured(queue, EXECUTIONS[bucket_of(execution_ms)])
    tx.measured(queue, WAITS[bucket_of(wait_ms)])
    tx.measured(queue, failure(sort))
