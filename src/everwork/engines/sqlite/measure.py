"""How long attempts waited and ran, and of what sort failures were: counted with the step that ends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from everwork.core.measures import BUCKETS, bucket_of, execution, failure, wait
from everwork.engines.sqlite.transaction import Transaction

EXECUTIONS: Final = tuple(execution(bucket) for bucket in range(BUCKETS))
WAITS: Final = tuple(wait(bucket) for bucket in range(BUCKETS))


def measure_completed(tx: Transaction, queue: int, names: Sequence[str], durations_ms: str) -> int:
    """Count completed attempts by durations that the store has put together with commas; the sum of these."""
    sum_ms = 0
    for duration_ms, jobs in _counted(durations_ms):
        sum_ms += max(0, duration_ms) * jobs
        tx.measured(queue, names[bucket_of(duration_ms)], jobs)
    return sum_ms


def _counted(numbers: str) -> list[tuple[int, int]]:
    """Each number with how often it stands there."""
    first, jobs = numbers.partition(",")[0], numbers.count(",") + 1
    if numbers == ",".join([first] * jobs):  # A batch that came and went together: not even taken apart.
        return [(int(first), jobs)]
    return [(int(text), jobs) for text, jobs in Counter(numbers.split(",")).items()]


def measure_failed(tx: Transaction, queue: int, execution_ms: int, wait_ms: int, sort: str) -> None:
    """Count an attempt that failed by its duration, its wait, and the sort of its failure."""
    tx.measured(queue, EXECUTIONS[bucket_of(execution_ms)])
    tx.measured(queue, WAITS[bucket_of(wait_ms)])
    tx.measured(queue, failure(sort))
