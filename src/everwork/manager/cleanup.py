"""What a dead process leaves behind: attempts that nobody ends any more, unless its parent does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everwork.aio.retrying import through_outage
from everwork.core import ending
from everwork.core.outcome import Failed, Outcome, Release
from everwork.core.texts import error_text
from everwork.exceptions import EngineError
from everwork.manager.process_handle import ProcessHandle
from everwork.runtime.job_log import shown_keys
from everwork.runtime.ledger import Entry, SlotState
from everwork.service.service import JobService


async def clear_up(service: JobService, spawned: ProcessHandle, log: Any) -> None:
    """End the attempts of a dead process: unbegun ones go back, begun ones fail with the reason.

    Failing this, because the engine is away, their leases lapse.
    """
    entries = spawned.entries()
    if not entries and spawned.has_ended_well:
        return  # It has given everything back itself.
    outcomes = [outcome for entry in entries if (outcome := outcome_of(spawned, entry)) is not None]
    _log_failures(spawned, entries, outcomes, log)
    try:
        if outcomes:
            await through_outage(lambda: service.settle(outcomes), None)
        strays = await through_outage(lambda: _strays(service, spawned.name, entries), None)
        if strays:
            await through_outage(lambda: service.settle(strays), None)
    except EngineError as error:
        facts = {"process": spawned.name, "attempts": len(outcomes), "keys": shown_keys(outcomes)}
        log.error("the attempts of a dead process are left to their leases", **facts, error=str(error))


def outcome_of(spawned: ProcessHandle, entry: Entry) -> Outcome | None:
    """How an attempt ended with its process; None if it is none of ours any more."""
    match entry.state:
        case SlotState.WAITING:
            return Release(entry.key, entry.attempt)
        case SlotState.BEGUN:
            return _of_begun(spawned, entry)
        case SlotState.HUNG:
            return _timed_out(spawned, entry)  # Refused if its process could still store it.
        case SlotState.ENDED:
            return _of_ended(spawned, entry)
        case _:
            return None


def _of_begun(spawned: ProcessHandle, entry: Entry) -> Outcome:
    is_cut_off = spawned.cancelled_at < math.inf
    if (entry.key, entry.attempt) in spawned.culprits or (is_cut_off and entry.is_overdue(spawned.cancelled_at)):
        return _timed_out(spawned, entry)
    if is_cut_off:
        return Release(entry.key, entry.attempt)
    return Failed(entry.key, entry.attempt, error_text(f"its process {spawned.verdict or spawned.end}"))


def _timed_out(spawned: ProcessHandle, entry: Entry) -> Outcome:
    more = spawned.culprits.get((entry.key, entry.attempt), "")
    is_final = next((post.is_final for post in spawned.posts if post.index == entry.worker), False)
    return ending.timed_out(entry.key, entry.attempt, entry.timeout, more, is_final=is_final)


def _of_ended(spawned: ProcessHandle, entry: Entry) -> Outcome:
    """Nobody knows any more how it ended, so it is run again."""
    if spawned.is_leaving:
        return Release(entry.key, entry.attempt)
    text = f"its process {spawned.verdict or spawned.end} before its outcome was stored"
    return Failed(entry.key, entry.attempt, error_text(text))


def _log_failures(spawned: ProcessHandle, entries: Sequence[Entry], outcomes: Sequence[Outcome], log: Any) -> None:
    """A line for each attempt that failed with its process; of those that hung there is one already."""
    ids = {post.index: post.id for post in spawned.posts}
    workers = {(entry.key, entry.attempt): ids.get(entry.worker) for entry in entries}
    for one in outcomes:
        at = (one.key, one.attempt)
        if isinstance(one, Failed) and at not in spawned.culprits:
            facts = {"process": spawned.name, "worker": workers[at], "key": one.key, "attempt": one.attempt}
            log.warning("a job failed", **facts, error=one.error)


async def _strays(service: JobService, worker: str, known: Sequence[Entry]) -> list[Outcome]:
    """Attempts that were leased by a step whose answer never reached the table: no handler has seen them."""
    seen = {(entry.key, entry.attempt) for entry in known}
    return [Release(*one) for one in await service.held(worker) if one not in seen]
