"""How long attempts waited and ran, and of what sort failures were: counted with the step that ends them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from everwork.core.measures import BUCKETS, bucket_of, execution, failure, wait
from everwork.engines.sqlite.transaction import Transaction

EXECUTIONS: Final = tuple(execution(bucket) for bucket in range(BUCKETS))
WAITS: Final = tuple(wait(bucket) for bucket in range(BUCKETS))


def measure_completed(tx: Transaction, queue: int, executions_ms: str, waits_ms: str) -> None:
    """Count completed attempts by their durations and waits, which the store has put together with commas."""
    # Equal ones are counted as text: most of a batch waited and ran as long as the others.
    for names, texts in ((EXECUTIONS, executions_ms), (WAITS, waits_ms)):
        for text, jobs in Counter(texts.split(",")).items():
            tx.measured(queue, names[bucket_of(int(text))], jobs)


def measure_failed(tx: Transaction, queue: int, execution_ms: int, wait_ms: int, sort: str) -> None:
    """Count an attempt that failed by its duration, its wait, and the sort of its failure."""
    tx.measured(queue, EXECUTIONS[bucket_of(execution_ms)])
    tx.measured(queue, WAITS[bucket_of(wait_ms)])
    tx.measured(queue, failure(sort))
