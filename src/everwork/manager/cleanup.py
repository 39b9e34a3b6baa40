"""Cleanup after a dead process: its parent settles the attempts that it left behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any

from everwork.aio.retrying import retry_while_unavailable
from everwork.core import ending
from everwork.core.leasing import Judged
from everwork.core.outcome import Failed, Outcome, Release
from everwork.core.texts import error_text
from everwork.exceptions import EngineError
from everwork.manager.process_handle import ProcessHandle
from everwork.runtime.job_log import log_failure, shown_keys
from everwork.runtime.ledger import Entry, SlotState
from everwork.service.service import JobService


async def clean_up(service: JobService, handle: ProcessHandle, log: Any) -> None:
    """Settle the attempts of a dead process: those not started are released, started ones fail with the reason.

    If the engine is unavailable, their leases expire instead. In offline mode, outcomes that the process left in the
    spool are reported from there.
    """
    entries = handle.entries()
    if not entries and handle.has_ended_well:
        return  # It has released everything itself.
    ends = [outcome for entry in entries if (outcome := outcome_of(handle, entry)) is not None]
    outcomes = await _unkept(handle, ends, log)
    try:
        if outcomes:
            judged = await retry_while_unavailable(lambda: service.settle(outcomes), None)
            _log_failures(handle, entries, zip(outcomes, judged, strict=True), log)
        unknown = await retry_while_unavailable(lambda: _orphans(service, handle.name, entries), None)
        orphans = await _unkept(handle, unknown, log)
        if orphans:
            await retry_while_unavailable(lambda: service.settle(orphans), None)
    except EngineError as error:
        facts = {"process": handle.name, "attempts": len(outcomes), "keys": shown_keys(outcomes)}
        log.error("jobs of a dead process are retried when their leases expire", **facts, error=str(error))


def outcome_of(handle: ProcessHandle, entry: Entry) -> Outcome | None:
    """How an attempt ended with its process; None if the process no longer held it."""
    match entry.state:
        case SlotState.WAITING:
            return Release(entry.key, entry.attempt)
        case SlotState.BEGUN:
            return _of_begun(handle, entry)
        case SlotState.HUNG:
            return _timed_out(handle, entry)  # The store refuses it if the process has already settled it.
        case SlotState.ENDED:
            return _of_ended(handle, entry)
        case _:
            return None


def _of_begun(handle: ProcessHandle, entry: Entry) -> Outcome:
    was_cancelled = handle.cancelled_at < math.inf
    if (entry.key, entry.attempt) in handle.hung_attempts or (was_cancelled and entry.is_overdue(handle.cancelled_at)):
        return _timed_out(handle, entry)
    if was_cancelled:
        return Release(entry.key, entry.attempt)
    return Failed(entry.key, entry.attempt, error_text(f"its process {handle.kill_reason or handle.end_text}"))


def _timed_out(handle: ProcessHandle, entry: Entry) -> Outcome:
    stack = handle.hung_attempts.get((entry.key, entry.attempt))
    more = "" if stack is None else " and blocked its process, which was killed"
    is_final = next((spec.is_final for spec in handle.workers if spec.index == entry.worker), False)
    where = ending.stack_text(stack)
    return ending.timed_out(entry.key, entry.attempt, entry.timeout, more, is_final=is_final, traceback=where)


def _of_ended(handle: ProcessHandle, entry: Entry) -> Outcome:
    """The outcome was lost with the process, so the job runs again."""
    if handle.is_leaving:
        return Release(entry.key, entry.attempt)
    text = f"its process {handle.kill_reason or handle.end_text} before its outcome was stored"
    return Failed(entry.key, entry.attempt, error_text(text))


async def _unkept(handle: ProcessHandle, outcomes: list[Outcome], log: Any) -> list[Outcome]:
    """The outcomes of attempts that have none in the spool of the process."""
    if handle.offline is None or not outcomes:
        return outcomes
    from everwork.spool.contents import kept_attempts_in  # noqa: PLC0415 - loaded only for offline mode

    attempts = [(outcome.key, outcome.attempt) for outcome in outcomes]
    try:
        kept = await asyncio.to_thread(kept_attempts_in, handle.offline, attempts)
    except EngineError as error:
        log.warning("the spool cannot be read", spool=handle.offline.spool.path, error=str(error))
        return outcomes
    return [outcome for outcome in outcomes if (outcome.key, outcome.attempt) not in kept]


def _log_failures(
    handle: ProcessHandle, entries: Sequence[Entry], settled: Iterable[tuple[Outcome, Judged]], log: Any
) -> None:
    """Log each attempt that failed with its process; the stack of a stuck one was logged before."""
    ids = {spec.index: spec.id for spec in handle.workers}
    workers = {(entry.key, entry.attempt): ids.get(entry.worker) for entry in entries}
    for one, judged in settled:
        if isinstance(one, Failed) and judged.failure is not None:
            worker = workers[one.key, one.attempt]
            facts = {"process": handle.name, "worker": worker, "key": one.key, "attempt": one.attempt}
            log_failure(log, one, judged.failure, facts)


async def _orphans(service: JobService, worker: str, known: Sequence[Entry]) -> list[Outcome]:
    """Releases of attempts leased by a call whose reply never reached the ledger: no handler has seen them."""
    seen = {(entry.key, entry.attempt) for entry in known}
    return [Release(*one) for one in await service.held(worker) if one not in seen]
