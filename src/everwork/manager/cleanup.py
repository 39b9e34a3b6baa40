"""Cleanup after a dead process: its parent settles the attempts that it left behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everwork.aio.retrying import retry_while_unavailable
from everwork.core import ending
from everwork.core.outcome import Failed, Outcome, Release
from everwork.core.texts import error_text
from everwork.exceptions import EngineError
from everwork.manager.process_handle import ProcessHandle
from everwork.runtime.job_log import shown_keys
from everwork.runtime.ledger import Entry, SlotState
from everwork.service.service import JobService


async def clean_up(service: JobService, handle: ProcessHandle, log: Any) -> None:
    """Settle the attempts of a dead process: those not begun are released, begun ones fail with the reason.

    If the engine is unavailable, their leases expire instead.
    """
    entries = handle.entries()
    if not entries and handle.has_ended_well:
        return  # It has released everything itself.
    outcomes = [outcome for entry in entries if (outcome := outcome_of(handle, entry)) is not None]
    _log_failures(handle, entries, outcomes, log)
    try:
        if outcomes:
            await retry_while_unavailable(lambda: service.settle(outcomes), None)
        orphans = await retry_while_unavailable(lambda: _orphans(service, handle.name, entries), None)
        if orphans:
            await retry_while_unavailable(lambda: service.settle(orphans), None)
    except EngineError as error:
        facts = {"process": handle.name, "attempts": len(outcomes), "keys": shown_keys(outcomes)}
        log.error("the attempts of a dead process are left to their leases", **facts, error=str(error))


def outcome_of(handle: ProcessHandle, entry: Entry) -> Outcome | None:
    """How an attempt ended with its process; None if the process no longer held it."""
    match entry.state:
        case SlotState.WAITING:
            return Release(entry.key, entry.attempt)
        case SlotState.BEGUN:
            return _of_begun(handle, entry)
        case SlotState.HUNG:
            return _timed_out(handle, entry)  # The store refuses it if the process had settled it.
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
    more = handle.hung_attempts.get((entry.key, entry.attempt), "")
    is_final = next((spec.is_final for spec in handle.workers if spec.index == entry.worker), False)
    return ending.timed_out(entry.key, entry.attempt, entry.timeout, more, is_final=is_final)


def _of_ended(handle: ProcessHandle, entry: Entry) -> Outcome:
    """Its outcome is lost with the process, so the job runs again."""
    if handle.is_leaving:
        return Release(entry.key, entry.attempt)
    text = f"its process {handle.kill_reason or handle.end_text} before its outcome was stored"
    return Failed(entry.key, entry.attempt, error_text(text))


def _log_failures(handle: ProcessHandle, entries: Sequence[Entry], outcomes: Sequence[Outcome], log: Any) -> None:
    """Log each attempt that failed with its process; those that hung are in the log already."""
    ids = {spec.index: spec.id for spec in handle.workers}
    workers = {(entry.key, entry.attempt): ids.get(entry.worker) for entry in entries}
    for one in outcomes:
        at = (one.key, one.attempt)
        if isinstance(one, Failed) and at not in handle.hung_attempts:
            facts = {"process": handle.name, "worker": workers[at], "key": one.key, "attempt": one.attempt}
            log.warning("a job failed", **facts, error=one.error)


async def _orphans(service: JobService, worker: str, known: Sequence[Entry]) -> list[Outcome]:
    """Attempts leased by a call whose reply never reached the ledger: no handler has seen them."""
    seen = {(entry.key, entry.attempt) for entry in known}
    return [Release(*one) for one in await service.held(worker) if one not in seen]
