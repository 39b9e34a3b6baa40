"""Settles the outcomes from a worker stream: each is judged separately, and refusals give the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, NamedTuple

from everwork.codec.json import decode
from everwork.codec.proto_requests import new_jobs_of, outcome_of
from everwork.core.job import NewJob
from everwork.core.leasing import Judged, Verdict, accepted
from everwork.core.limits import EVENTS_MAX, SETTLE_BATCH_MAX, SETTLE_EVENTS_MAX
from everwork.core.outcome import Complete, Failed, Outcome, Throw
from everwork.exceptions import EngineError, EverworkError, InvalidInput, JobError, JobNotFound, PermissionDenied
from everwork.proto import work_pb2
from everwork.service.access.budgets import Slices
from everwork.service.jobs import Jobs
from everwork.service.service import JobService

MESSAGE_CHARS_MAX: Final = 200
"""A refusal's text is truncated to this length: one message can carry many."""
BATCH_BYTES_MAX: Final = 8 * 1_048_576
"""How many bytes of results, variables and events are settled in one step, not counting the last outcome."""
EVENT_BYTES: Final = 600
"""What an event takes in memory, without its variables."""
EVENT_BYTES_MIN: Final = 2
"""What it takes at least in a message."""
STEP: Final = 500
"""How many outcomes are read before other callers are served."""
_VERDICT_REASONS: Final = {
    Verdict.NOT_FOUND: work_pb2.NOT_FOUND,
    Verdict.WRONG_STATE: work_pb2.WRONG_STATE,
    Verdict.LEASE_LOST: work_pb2.LEASE_LOST,
}
_ERROR_REASONS: Final = {JobNotFound: work_pb2.NOT_FOUND, PermissionDenied: work_pb2.PERMISSION_DENIED}


class Batch(NamedTuple):
    """Outcomes that can be settled, with their numbers, and refusals for the others."""

    numbers: list[int]
    outcomes: list[Outcome]
    refusals: list[work_pb2.Refusal]


async def settle_messages(
    service: JobService, jobs: Jobs, messages: Sequence[work_pb2.Outcome], first: int = 1, *, is_late: bool = False
) -> list[work_pb2.Refusal]:
    """Settle outcomes, a batch at a time; return the refused ones by number.

    An `EngineError` means that not all are settled. Each outcome names its attempt, so repeating them all is safe.
    """
    settle = service.settle_late if is_late else service.settle
    slices = service.budgets.slices(jobs.principal)
    refusals: list[work_pb2.Refusal] = []
    at = 0
    while at < len(messages):
        some = messages[at : at + SETTLE_BATCH_MAX]
        async with merging(service, jobs, some):
            batch, size = await _checked(jobs, some, first + at, slices)
            judged = await settle(batch.outcomes) if batch.outcomes else []
        at += size
        refusals += batch.refusals
        for number, outcome, one in zip(batch.numbers, batch.outcomes, judged, strict=True):
            if not one.ok:
                refusals.append(_refused(number, outcome, one))
    return sorted(refusals, key=lambda refusal: refusal.number)


def require_few_events(messages: Sequence[work_pb2.Outcome], size: int) -> None:
    """Refuse outcomes with too many events in total; `size` is that of their message."""
    if size <= EVENT_BYTES_MIN * SETTLE_EVENTS_MAX:
        return
    events = sum(len(one.complete.events) for one in messages)
    if events > SETTLE_EVENTS_MAX:
        raise InvalidInput("outcomes", f"must have at most {SETTLE_EVENTS_MAX:,} events in total, not {events:,}")


def merging(
    service: JobService, jobs: Jobs, messages: Sequence[work_pb2.Outcome]
) -> AbstractAsyncContextManager[object]:
    """A turn among the bulk calls, if failures change the variables of several jobs, which may be large."""
    merged = sum(one.HasField("fail") and bool(one.fail.variables) for one in messages)
    merged += sum(one.HasField("throw") and bool(one.throw.variables) for one in messages)
    return service.budgets.bulk.of(jobs.principal) if merged > 1 else nullcontext()


async def read_outcome(jobs: Jobs, message: work_pb2.Outcome, slices: Slices) -> Outcome:
    """A checked outcome, with the variables of a failure merged into those of its job."""
    tenant_of = jobs.principal.tenant_for_create
    events: list[NewJob] = []
    if len(message.complete.events) > slices.size:
        if len(message.complete.events) > EVENTS_MAX:
            raise InvalidInput("events", f"must be at most {EVENTS_MAX:,}, not {len(message.complete.events):,}")
        for start in range(0, len(message.complete.events), slices.size):
            some = message.complete.events[start : start + slices.size]
            events += new_jobs_of(some, tenant_of, "events", start)
            await slices.give_way()
    outcome = outcome_of(message, tenant_of, events)
    if isinstance(outcome, Failed | Throw) and outcome.variables is not None:
        merged = await jobs.merged_variables(outcome.key, decode(outcome.variables))
        return outcome._replace(variables=merged)
    return outcome


async def _checked(jobs: Jobs, messages: Sequence[work_pb2.Outcome], first: int, slices: Slices) -> tuple[Batch, int]:
    """A batch, and of how many messages: it ends with the outcome that makes it large."""
    batch = Batch([], [], [])
    size = weight = 0
    for number, message in enumerate(messages, first):
        size += 1
        try:
            if not message.attempt:
                raise InvalidInput("attempt", "is required: a stream knows the attempts of its jobs")
            outcome = await read_outcome(jobs, message, slices)
            batch.outcomes.append(outcome)
            batch.numbers.append(number)
            weight += weight_of(outcome)
        except EngineError:
            raise
        except EverworkError as error:
            batch.refusals.append(_invalid(number, message, error))
        if weight > BATCH_BYTES_MAX:
            break
        if size % STEP == 0:
            await asyncio.sleep(0)
    refused = await jobs.refused([outcome.key for outcome in batch.outcomes])
    return (_without(batch, refused) if refused else batch), size


def weight_of(outcome: Outcome) -> int:
    """How many bytes an outcome takes, apart from a fixed size."""
    if isinstance(outcome, Complete):
        return len(outcome.result or "") + EVENT_BYTES * len(outcome.events)
    return len(outcome.variables or "") if isinstance(outcome, Failed | Throw) else 0


def _without(batch: Batch, refused: Mapping[int, EverworkError]) -> Batch:
    """The batch without the jobs that the caller has no access to."""
    kept = Batch([], [], batch.refusals)
    for number, outcome in zip(batch.numbers, batch.outcomes, strict=True):
        if error := refused.get(outcome.key):
            kept.refusals.append(_invalid(number, outcome, error))
        else:
            kept.numbers.append(number)
            kept.outcomes.append(outcome)
    return kept


def _refused(number: int, outcome: Outcome, judged: Judged) -> work_pb2.Refusal:
    message = ""
    try:
        accepted(outcome.key, judged, "ended so")
    except JobError as error:
        message = str(error)
    refusal = _refusal(number, outcome, _VERDICT_REASONS[judged.verdict], message)
    refusal.state = "" if judged.state is None else judged.state.label
    return refusal


def _invalid(number: int, message: Outcome | work_pb2.Outcome, error: EverworkError) -> work_pb2.Refusal:
    return _refusal(number, message, _ERROR_REASONS.get(type(error), work_pb2.INVALID), str(error))


def _refusal(number: int, outcome: Outcome | work_pb2.Outcome, reason: int, message: str) -> work_pb2.Refusal:
    lease = work_pb2.Lease(key=outcome.key, attempt=outcome.attempt)
    return work_pb2.Refusal(number=number, lease=lease, reason=reason, message=message[:MESSAGE_CHARS_MAX])
