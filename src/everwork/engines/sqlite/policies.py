"""set_policy: the numbers of a policy go into columns; where limits change, what runs is counted."""

from __future__ import annotations

from everwork.codec.json import decode_policy
from everwork.core.policy import TypePolicy
from everwork.core.states import State
from everwork.engines.sqlite.recount import Limited, count_anew
from everwork.engines.sqlite.statements import statements
from everwork.engines.sqlite.transaction import Transaction

SQL = statements("registry")


def set_policy(tx: Transaction, type: str, policy: str | None) -> None:
    """Keep a type's policy."""
    tx.type(type)
    tx.flush()  # What is counted anew below must not be added once more.
    said = decode_policy(policy)
    *limits, back_ms, rounds = tx.cursor.execute(SQL["limits"], (type,)).fetchone()
    tx.cursor.execute(SQL["set_policy"], (type, policy, *_numbers(said)))
    if (back_ms, rounds) != (said.failed_job_retry_ms, said.failed_job_retry_rounds):
        tx.cursor.execute(SQL["look_back"], (type,))
    tx.forget_type(type)
    tx.holds.forget()
    if limits != [said.max_running, said.max_running_per_key]:
        for queue, solo in tx.cursor.execute(SQL["queues_of"], (type,)).fetchall():
            count_anew(tx, Limited(queue, solo, type, said.max_running, said.max_running_per_key))
    tx.woken = True


def _numbers(said: TypePolicy) -> tuple[int | None, ...]:
    breaker, rate = said.breaker, said.rate
    return (
        *((breaker.failures, breaker.open_ms) if breaker else (None, None)),
        said.max_running,
        said.max_running_per_key,
        *((rate.jobs, rate.window_ms) if rate else (None, None)),
        said.failed_job_retry_ms,
        said.failed_job_retry_rounds,
        said.keep_ms(State.COMPLETED),
        said.keep_ms(State.FAILED),
    )
