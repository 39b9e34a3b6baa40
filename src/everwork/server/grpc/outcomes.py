"""The outcomes from a worker stream: queued, and settled; each is judged separately, and refusals give the reason."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from everwork.codec.json import decode
from everwork.codec.proto_requests import outcome_of
from everwork.core.leasing import Judged, Lease, Verdict, accepted
from everwork.core.limits import SETTLE_BATCH_MAX
from everwork.core.outcome import Failed, Outcome, Throw
from everwork.exceptions import EngineError, EverworkError, InvalidInput, JobError, JobNotFound, PermissionDenied
from everwork.proto import work_pb2
from everwork.service.jobs import Jobs, Settle

UNJUDGED_MAX: Final = 20_000
"""The server stops reading for a while from a worker that reports faster than the engine settles."""
UNJUDGED_BYTES_MAX: Final = 1_048_576
"""The same for the size of the messages with these outcomes: a slow or unavailable engine must not fill the memory."""
MESSAGE_CHARS_MAX: Final = 200
"""A refusal's text is truncated to this length: one message can carry many."""
_VERDICT_REASONS: Final = {
    Verdict.NOT_FOUND: work_pb2.NOT_FOUND,
    Verdict.WRONG_STATE: work_pb2.WRONG_STATE,
    Verdict.LEASE_LOST: work_pb2.LEASE_LOST,
}
_ERROR_REASONS: Final = {JobNotFound: work_pb2.NOT_FOUND, PermissionDenied: work_pb2.PERMISSION_DENIED}


class Reported:
    """The outcomes that a worker has reported, in order, until they are judged."""

    def __init__(self) -> None:
        self.received = 0
        """How many have been reported."""
        self.judged = 0
        """How many of them have been judged."""
        self.waiting: list[work_pb2.Outcome] = []
        self.ending: set[Lease] = set()
        """The attempts that they end."""
        self._settling: list[work_pb2.Outcome] = []
        self._bytes = 0
        self._sizes: deque[tuple[int, int]] = deque()
        """For each message with outcomes, the number of its last one, and its size."""
        self._capacity = asyncio.Event()

    @property
    def unjudged(self) -> list[work_pb2.Outcome]:
        """Those that are not judged yet."""
        return [*self._settling, *self.waiting]

    def add(self, outcomes: Sequence[work_pb2.Outcome], size: int) -> list[Lease]:
        """Queue the outcomes of a message of this size; returns the attempts that they end."""
        leases = [Lease(one.key, one.attempt) for one in outcomes]
        self.received += len(leases)
        self.waiting.extend(outcomes)
        self.ending.update(leases)
        self._sizes.append((self.received, size))
        self._bytes += size
        return leases

    def take(self, most: int) -> list[work_pb2.Outcome]:
        """The next outcomes to settle."""
        self._settling, self.waiting = self.waiting[:most], self.waiting[most:]
        self._capacity.set()
        return self._settling

    def settled(self) -> None:
        """Those that were taken have been judged."""
        self.judged += len(self._settling)
        self.ending.difference_update(Lease(one.key, one.attempt) for one in self._settling)
        self._settling = []
        while self._sizes and self._sizes[0][0] <= self.judged:
            self._bytes -= self._sizes.popleft()[1]
        self._capacity.set()

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
    settle: Settle, jobs: Jobs, messages: Sequence[work_pb2.Outcome], first: int = 1
) -> list[work_pb2.Refusal]:
    """Settle outcomes; return the refused ones by number.

    An `EngineError` means that not all are settled. Each outcome names its attempt, so repeating them all is safe.
    """
    refusals: list[work_pb2.Refusal] = []
    for start in range(0, len(messages), SETTLE_BATCH_MAX):
        batch = await _checked(jobs, messages[start : start + SETTLE_BATCH_MAX], first + start)
        judged = await settle(batch.outcomes) if batch.outcomes else []
        refusals += batch.refusals
        for number, outcome, one in zip(batch.numbers, batch.outcomes, judged, strict=True):
            if not one.ok:
                refusals.append(_refused(number, outcome, one))
    return sorted(refusals, key=lambda refusal: refusal.number)


async def _checked(jobs: Jobs, messages: Sequence[work_pb2.Outcome], first: int) -> Batch:
    batch = Batch([], [], [])
    for number, message in enumerate(messages, first):
        try:
            batch.outcomes.append(await _outcome(jobs, message))
            batch.numbers.append(number)
        except EngineError:
            raise
        except EverworkError as error:
            batch.refusals.append(_invalid(number, message, error))
    refused = await jobs.refused([outcome.key for outcome in batch.outcomes])
    return _without(batch, refused) if refused else batch


async def _outcome(jobs: Jobs, message: work_pb2.Outcome) -> Outcome:
    if not message.attempt:
        raise InvalidInput("attempt", "is required: a stream knows the attempts of its jobs")
    outcome = outcome_of(message, jobs.principal.tenant_for_create)
    if isinstance(outcome, Failed | Throw) and outcome.variables is not None:
        merged = await jobs.merged_variables(outcome.key, decode(outcome.variables))
        return outcome._replace(variables=merged)
    return outcome


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
