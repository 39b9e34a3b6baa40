"""cancel, requeue, set_retries, reschedule, set_priority, delete: a guarded statement; refusals are explained after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everwork.core.leasing import Judged, Verdict
from everwork.core.retry import raised_attempts, remaining_retries
from everwork.core.states import Cause, State
from everwork.engines.postgres.opened import OpenStore
from everwork.exceptions import EngineBusy

Judge = Callable[[State], Verdict]
TRIES_MAX = 100


async def cancel(parts: OpenStore, keys: Sequence[int], reason: str) -> list[Judged]:
    """Cancel what is pending or processing."""
    rows = await cancel_rows(parts, keys, Cause.CANCEL, reason)
    return await _judged(parts, keys, rows, lambda s: Verdict.REPEATED if s is State.CANCELLED else Verdict.WRONG_STATE)


async def cancel_rows(
    parts: OpenStore, keys: Sequence[int], cause: Cause, reason: str, *, only_pending: bool = False
) -> list[Any]:
    """Cancel jobs; those that were cancelled, as they were found."""
    sql = parts.sql("cancel")["cancel"]
    rows = await parts.connections.rows(sql, sorted(set(keys)), parts.now_ms(), cause.value, reason, only_pending)
    if rows:
        parts.notifier.tell_done()
    return rows


async def requeue(parts: OpenStore, keys: Sequence[int], max_attempts: int | None = None) -> list[Judged]:
    """Bring dead letters back, with the attempts they were created with unless told otherwise."""
    rows = await requeue_rows(parts, keys, max_attempts)
    return await _judged(parts, keys, rows, lambda _: Verdict.WRONG_STATE)


async def requeue_rows(
    parts: OpenStore, keys: Sequence[int], max_attempts: int | None = None, said: str | None = None
) -> list[Any]:
    """Bring dead letters back; those that came, as they were found. `said`: they do so by themselves, as it is told."""
    sql = parts.sql("requeue")["requeue"]
    rows = await parts.connections.rows(sql, sorted(set(keys)), parts.now_ms(), max_attempts, said)
    if rows:
        parts.notifier.tell_work({row[4] for row in rows})
    return rows


async def set_retries(parts: OpenStore, key: int, retries: int) -> Judged:
    """Change how many attempts are left; the previous number is answered."""
    for _ in range(TRIES_MAX):
        rows = await parts.connections.look(parts.sql("get")["where"], [key])
        if not rows:
            return Judged(Verdict.NOT_FOUND)
        verdict = await _set_retries(parts, rows[0], retries)
        if verdict is not None:
            return _found(verdict, rows[0][1], rows[0][3], rows[0][4])
    raise EngineBusy("the job changes faster than its retries can be set; try again")


async def reschedule(parts: OpenStore, keys: Sequence[int], run_at_ms: int | None, delay_ms: int) -> list[Judged]:
    """Let pending jobs run at another time."""
    sql = parts.sql("reschedule")["reschedule"]
    delay_ms = 0 if run_at_ms is not None else delay_ms
    rows = await parts.connections.rows(sql, sorted(set(keys)), run_at_ms, delay_ms, parts.now_ms())
    if rows:
        parts.notifier.tell_work({row[4] for row in rows})
    return await _judged(parts, keys, rows, lambda _: Verdict.WRONG_STATE, repeats=True)


async def set_priority(parts: OpenStore, keys: Sequence[int], priority: int) -> list[Judged]:
    """Change the priority of pending jobs."""
    rows = await parts.connections.rows(parts.sql("set_priority")["set_priority"], sorted(set(keys)), priority)
    return await _judged(parts, keys, rows, lambda _: Verdict.WRONG_STATE, repeats=True)


async def delete(parts: OpenStore, keys: Sequence[int]) -> list[Judged]:
    """Remove finished jobs."""
    rows = await parts.connections.rows(parts.sql("delete")["delete"], sorted(set(keys)))
    return await _judged(parts, keys, rows, lambda _: Verdict.WRONG_STATE)


async def _judged(
    parts: OpenStore, keys: Sequence[int], rows: Sequence[Any], judge: Judge, *, repeats: bool = False
) -> list[Judged]:
    """The answer for each key: accepted the first time it is met, otherwise by the state it is in now.

    `repeats`: doing it twice is accepted twice.
    """
    accepted = {row[0]: _found(Verdict.ACCEPTED, *row[1:4]) for row in rows}
    if len(accepted) == len(keys):
        return [accepted[key] for key in keys]
    others = await parts.connections.look(parts.sql("get")["where"], sorted(set(keys)))
    now = {row[0]: _found(judge(State(row[1])), row[1], row[3], row[4]) for row in others}
    answers = []
    for key in keys:
        answer = accepted.get(key) if repeats else accepted.pop(key, None)
        answers.append(answer or now.get(key) or Judged(Verdict.NOT_FOUND))
    return answers


def _found(verdict: Verdict, state_number: int, attempts: int, max_attempts: int) -> Judged:
    state = State(state_number)
    return Judged(verdict, state, remaining_retries(state, attempts, max_attempts))


async def _set_retries(parts: OpenStore, row: Any, retries: int) -> Verdict | None:
    """What was done; None if somebody changed the job meanwhile."""
    key, state_number, attempt, attempts, *_ = row
    match State(state_number):
        case State.PENDING if retries > 0:
            allowed = raised_attempts(attempts, retries)
        case State.PROCESSING:
            allowed = raised_attempts(attempts, max(retries, 1) - 1)
        case State.FAILED if retries > 0:
            [judged] = await requeue(parts, [key], retries)
            return Verdict.ACCEPTED if judged.ok else None
        case State.FAILED:
            return Verdict.REPEATED
        case _:
            return Verdict.WRONG_STATE
    is_processing = state_number == State.PROCESSING
    sql = parts.sql("set_retries")["set_retries"]
    changed = await parts.connections.rows(sql, key, allowed, is_processing, attempt, attempts)
    return Verdict.ACCEPTED if changed else None
