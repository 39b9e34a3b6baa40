"""The outcomes from a worker stream: queued, and settled; each is judged separately, and refusals give the reason."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, NamedTuple

from everwork.codec.json import decode
from everwork.codec.proto_requests import new_jobs_of, outcome_of
from everwork.core.job import NewJob
from everwork.core.leasing import Judged, Lease, Verdict, accepted
from everwork.core.limits import EVENTS_MAX, SETTLE_BATCH_MAX, SETTLE_EVENTS_MAX
from everwork.core.outcome import Complete, Failed, Outcome, Throw
from everwork.exceptions import EngineError, EverworkError, InvalidInput, JobError, JobNotFound, PermissionDenied
from everwork.proto import work_pb2
from everwork.server.grpc.intake import HeldBytes, request_bytes
from everwork.service.access.budgets import Slices
from everwork.service.jobs import Jobs
from everwork.service.service import JobService

UNJUDGED_MAX: Final = 20_000
"""The server stops reading for a while from a worker that reports faster than the engine settles."""
UNJUDGED_BYTES_MAX: Final = 8 * 1_048_576
"""The same for the memory of these outcomes: a slow or unavailable engine must not fill it."""
OUTCOME_BYTES: Final = 300
"""What an outcome takes in memory, in addition to its values."""
BATCH_BYTES_MAX: Final = 8 * 1_048_576
"""How many bytes of results, variables and events are settled in one step, not counting the last outcome."""
EVENT_BYTES: Final = 600
"""What an event takes in memory, without its variables."""
EVENT_BYTES_MIN: Final = 2
"""What an event takes at least in a message."""
SMALL_BYTES: Final = 128
"""The results of smaller outcomes are not counted one by one, and their events are not read in slices."""
OUTCOMES_STEP: Final = 500
"""How many outcomes are read before other callers are served."""
MESSAGE_CHARS_MAX: Final = 200
"""A refusal's text is truncated to this length: one message can carry many."""
_VERDICT_REASONS: Final = {
    Verdict.NOT_FOUND: work_pb2.NOT_FOUND,
    Verdict.WRONG_STATE: work_pb2.WRONG_STATE,
    Verdict.LEASE_LOST: work_pb2.LEASE_LOST,
}
_ERROR_REASONS: Final = {JobNotFound: work_pb2.NOT_FOUND, PermissionDenied: work_pb2.PERMISSION_DENIED}


class Reported:
    """The outcomes that a worker has reported, in order, until they are judged; their memory is held in `requests`."""

    def __init__(self, requests: HeldBytes, caller: str) -> None:
        self._requests = requests
        self._caller = caller
        self.received = 0
        """How many have been reported."""
        self.judged = 0
        """How many of them have been judged."""
        self.waiting: list[work_pb2.Outcome] = []
        self.ending: set[Lease] = set()
        """The attempts that they end."""
        self._settling: list[work_pb2.Outcome] = []
        self._leases: list[Lease] = []
        """The attempts of `waiting`, and those of `_settling`."""
        self._leases_settling: list[Lease] = []
        self._bytes = 0
        self._sizes: deque[tuple[int, int]] = deque()
        """For each message with outcomes, the number of its last one, and the memory that they take."""
        self._capacity = asyncio.Event()

    @property
    def unjudged(self) -> list[work_pb2.Outcome]:
        """Those that are not judged yet."""
        return [*self._settling, *self.waiting]

    def add(self, outcomes: Sequence[work_pb2.Outcome], size: int) -> list[Lease]:
        """Queue the outcomes of a message of this size; returns the attempts that they end."""
        size = request_bytes(size) + OUTCOME_BYTES * len(outcomes)
        self._requests.add(self._caller, size)
        leases = [Lease(one.key, one.attempt) for one in outcomes]
        self.received += len(leases)
        self.waiting += outcomes
        self._leases += leases
        self.ending.update(leases)
        self._sizes.append((self.received, size))
        self._bytes += size
        return leases

    def take(self, most: int) -> list[work_pb2.Outcome]:
        """The next outcomes to settle."""
        self._settling, self.waiting = self.waiting[:most], self.waiting[most:]
        self._leases_settling, self._leases = self._leases[:most], self._leases[most:]
        self._capacity.set()
        return self._settling

    def settled(self) -> None:
        """Those that were taken have been judged."""
        self.judged += len(self._settling)
        self.ending.difference_update(self._leases_settling)
        self._settling, self._leases_settling = [], []
        while self._sizes and self._sizes[0][0] <= self.judged:
            _, size = self._sizes.popleft()
            self._bytes -= size
            self._requests.release(self._caller, size)
        self._capacity.set()

    def forget(self) -> None:
        """Stop counting the memory of those that are not judged: their stream has ended, and nothing of it is kept."""
        self._requests.release(self._caller, self._bytes)
        self._bytes = 0

    async def has_capacity(self) -> None:
        """Wait until few enough are unjudged to read another message."""
        while len(self.waiting) > UNJUDGED_MAX or self._bytes > UNJUDGED_BYTES_MAX:
            self._capacity.clear()
            await self._capacity.wait()


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
            batch, count = await _checked(jobs, some, first + at, slices)
            judged = await settle(batch.outcomes) if batch.outcomes else []
        at += count
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
    kinds = {one.WhichOneof("kind") for one in messages}
    merged = sum(bool(one.fail.variables) for one in messages) if "fail" in kinds else 0
    merged += sum(bool(one.throw.variables) for one in messages) if "throw" in kinds else 0
    return service.budgets.bulk.of(jobs.principal) if merged > 1 else nullcontext()


async def read_outcome(jobs: Jobs, message: work_pb2.Outcome, slices: Slices) -> Outcome:
    """A checked outcome, with the variables of a failure merged into those of its job."""
    tenant_of, sent = jobs.principal.tenant_for_create, message.complete.events
    events: list[NewJob] = []
    if len(sent) > EVENTS_MAX:
        raise InvalidInput("events", f"must be at most {EVENTS_MAX:,} of one attempt, not {len(sent):,}")
    if len(sent) > slices.size:
        for start in range(0, len(sent), slices.size):
            events += new_jobs_of(sent[start : start + slices.size], tenant_of, "events", start)
            await slices.give_way()
    outcome = outcome_of(message, tenant_of, events)
    return outcome if isinstance(outcome, Complete) else await _merged(jobs, outcome)


async def _merged(jobs: Jobs, outcome: Outcome) -> Outcome:
    """The outcome, with the variables of a failure merged into those of its job."""
    if isinstance(outcome, Failed | Throw) and outcome.variables is not None:
        merged = await jobs.merged_variables(outcome.key, decode(outcome.variables))
        return outcome._replace(variables=merged)
    return outcome


async def _checked(jobs: Jobs, messages: Sequence[work_pb2.Outcome], first: int, slices: Slices) -> tuple[Batch, int]:
    """A batch, and of how many messages: it ends with the outcome that makes it large."""
    batch, tenant_of = Batch([], [], []), jobs.principal.tenant_for_create
    count = size = 0
    for number, message in enumerate(messages, first):
        count += 1
        try:
            if not message.attempt:
                raise InvalidInput("attempt", "is required: a stream knows the attempts of its jobs")
            if message.ByteSize() > SMALL_BYTES:
                outcome = await read_outcome(jobs, message, slices)
                size += _bytes_of(outcome)
            elif not isinstance(outcome := outcome_of(message, tenant_of), Complete) or outcome.events:
                outcome = await _merged(jobs, outcome)
                size += _bytes_of(outcome)
            batch.outcomes.append(outcome)
            batch.numbers.append(number)
        except EngineError:
            raise
        except EverworkError as error:
            batch.refusals.append(_invalid(number, message, error))
        if size > BATCH_BYTES_MAX:
            break
        if count % OUTCOMES_STEP == 0:
            await asyncio.sleep(0)
    refused = await jobs.refused([outcome.key for outcome in batch.outcomes])
    return (_without(batch, refused) if refused else batch), count


def _bytes_of(outcome: Outcome) -> int:
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
