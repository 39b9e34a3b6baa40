"""Changes to jobs: each is one guarded statement; a second statement explains refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from everwork.core.leasing import Judged, Verdict
from everwork.core.retry import raised_attempts, remaining_retries
from everwork.core.states import Cause, State
from everwork.engines.contract.changes import Changes
from everwork.engines.postgres.opened import OpenStore, PostgresBase
from everwork.engines.postgres.read import JobStatus, job_statuses
from everwork.engines.rules import AUTOMATIC_REQUEUE, CHANGED_ARGUMENTS
from everwork.exceptions import EngineBusy

Judge = Callable[[State], Verdict]
TRIES_MAX = 100


class Changed(NamedTuple):
    """A job that a statement has changed, as it was before the change."""

    key: int
    state: int
    attempts: int
    max_attempts: int
    type: str = ""
    """Set only where workers are notified of the change."""


class PostgresChanges(PostgresBase, Changes):
    """Changes to jobs, by key."""

    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        changed = await cancel_rows(self._store, keys, Cause.CANCEL, reason)
        return await _judged(self._store, keys, changed, _judge_cancel)

    async def requeue(
        self, keys: Sequence[int], *, waiting: bool = False, variables: str | None = None
    ) -> list[Judged]:
        changed = await requeue_rows(self._store, keys, variables=variables)
        if waiting and len(changed) < len(keys):
            changed += await _requeue_waiting(self._store, keys, variables)
        return await _judged(self._store, keys, changed)

    async def set_retries(self, key: int, retries: int) -> Judged:
        store = self._store
        for _ in range(TRIES_MAX):
            statuses = await job_statuses(store, [key])
            if not statuses:
                return Judged(Verdict.NOT_FOUND)
            [status] = statuses
            verdict = await _set_retries(store, status, retries)
            if verdict is not None:
                return _judgement(verdict, status)
        raise EngineBusy("the job keeps changing while its retries are being set; try again")

    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        store, sql = self._store, self._store.sql("reschedule")["reschedule"]
        delay_ms = 0 if run_at_ms is not None else delay_ms
        rows = await store.connections.fetch(sql, sorted(set(keys)), run_at_ms, delay_ms, store.now_ms())
        changed = [Changed(*row) for row in rows]
        if changed:
            store.notifier.notify_work({job.type for job in changed})
        return await _judged(store, keys, changed, repeats=True)

    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        store, sql = self._store, self._store.sql("set_priority")["set_priority"]
        rows = await store.connections.fetch(sql, sorted(set(keys)), priority)
        return await _judged(store, keys, [Changed(*row) for row in rows], repeats=True)

    async def delete(self, keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Judged]:
        return await _judged(self._store, keys, await delete_rows(self._store, keys, attempts))


async def cancel_rows(
    store: OpenStore, keys: Sequence[int], cause: Cause, reason: str, *, only_pending: bool = False
) -> list[Changed]:
    """Cancel jobs; return those that were cancelled."""
    sql = store.sql("cancel")["cancel"]
    rows = await store.connections.fetch(sql, sorted(set(keys)), store.now_ms(), cause.value, reason, only_pending)
    if rows:
        store.notifier.notify_finished()
    return [Changed(*row) for row in rows]


async def requeue_rows(
    store: OpenStore,
    keys: Sequence[int],
    max_attempts: int | None = None,
    *,
    is_automatic: bool = False,
    variables: str | None = None,
) -> list[Changed]:
    """Requeue dead letters, with the attempts they were created with by default; return those that were requeued.

    `is_automatic`: requeue only jobs whose type policies allow it; the history records the requeue as automatic.
    """
    sql = store.sql("requeue")["requeue"]
    note = AUTOMATIC_REQUEUE if is_automatic else _note(variables)
    args = (sorted(set(keys)), store.now_ms(), max_attempts, note, variables, is_automatic)
    changed = [Changed(*row) for row in await store.connections.fetch(sql, *args)]
    if changed:
        store.notifier.notify_work({job.type for job in changed})
    return changed


async def _requeue_waiting(store: OpenStore, keys: Sequence[int], variables: str | None) -> list[Changed]:
    """Requeue pending jobs that have had an attempt; return those that were requeued."""
    sql = store.sql("requeue")["waiting"]
    args = (sorted(set(keys)), store.now_ms(), _note(variables), variables)
    changed = [Changed(*row) for row in await store.connections.fetch(sql, *args)]
    if changed:
        store.notifier.notify_work({job.type for job in changed})
    return changed


def _note(variables: str | None) -> str | None:
    """The note that the history records for a requeue."""
    return None if variables is None else CHANGED_ARGUMENTS


async def delete_rows(store: OpenStore, keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Changed]:
    """Delete finished jobs, unless they have had another attempt since; return the deleted ones."""
    seen: dict[int, int | None] = dict.fromkeys(keys)
    if attempts is not None:
        seen = dict(zip(keys, attempts, strict=True))
    ordered = sorted(seen)
    rows = await store.connections.fetch(store.sql("delete")["delete"], ordered, [seen[key] for key in ordered])
    return [Changed(*row) for row in rows]


def _judge_cancel(state: State) -> Verdict:
    return Verdict.REPEATED if state is State.CANCELLED else Verdict.WRONG_STATE


def _judge_wrong_state(_: State) -> Verdict:
    return Verdict.WRONG_STATE


async def _judged(
    store: OpenStore,
    keys: Sequence[int],
    changed: Sequence[Changed],
    judge: Judge = _judge_wrong_state,
    *,
    repeats: bool = False,
) -> list[Judged]:
    """The result for each key: accepted the first time it occurs, otherwise decided by the job's current state.

    `repeats`: a key that occurs twice is accepted twice.
    """
    accepted = {job.key: _judgement(Verdict.ACCEPTED, job) for job in changed}
    if len(accepted) == len(keys):
        return [accepted[key] for key in keys]
    statuses = await job_statuses(store, sorted(set(keys)))
    refused = {status.key: _judgement(judge(State(status.state)), status) for status in statuses}
    answers = []
    for key in keys:
        answer = accepted.get(key) if repeats else accepted.pop(key, None)
        answers.append(answer or refused.get(key) or Judged(Verdict.NOT_FOUND))
    return answers


def _judgement(verdict: Verdict, job: Changed | JobStatus) -> Judged:
    state = State(job.state)
    return Judged(verdict, state, remaining_retries(state, job.attempts, job.max_attempts))


async def _set_retries(store: OpenStore, job: JobStatus, retries: int) -> Verdict | None:
    """Set the retries of a job that was just read; None if it has changed since."""
    match State(job.state):
        case State.PENDING if retries > 0:
            allowed = raised_attempts(job.attempts, retries)
        case State.PROCESSING:
            allowed = raised_attempts(job.attempts, max(retries, 1) - 1)
        case State.FAILED if retries > 0:
            return Verdict.ACCEPTED if await requeue_rows(store, [job.key], retries) else None
        case State.FAILED:
            return Verdict.REPEATED
        case _:
            return Verdict.WRONG_STATE
    is_processing = job.state == State.PROCESSING
    sql = store.sql("set_retries")["set_retries"]
    rows = await store.connections.fetch(sql, job.key, allowed, is_processing, job.attempt, job.attempts)
    return Verdict.ACCEPTED if rows else None
