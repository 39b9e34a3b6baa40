"""Claims: where each one starts, what it sends, and what its statement returns.

A claim starts at the front of the ready index, or after the last job claimed. Index entries of claimed jobs stay until
a vacuum may remove them, which a snapshot that is held open (by a backup, a forgotten transaction) prevents. A claim
from the front then scans all of them. When that gets slow, claims start after the end of the previous one, and only a
tenth of the time is spent at the front: jobs before the mark (retries, higher priorities) wait at most a second.
Normally, claims start at the front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple

from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand, Receiver
from everwork.core.limits import TYPES_MAX
from everwork.engines.portions import Claim, distribute

DEAD_MAX: Final = 5_000
"""Up to this many dead entries before the first live one are tolerated: claims still start at the front."""
FRONT_WAIT_MS_PER_DEAD: Final = 0.0025
"""Ten times the cost of skipping one dead entry."""
FRONT_WAIT_MS_MAX: Final = 1_000

Position = tuple[int, int, int]
"""Claim order (guarantee G9): sort_priority (the column rank, the negated priority), run_at_ms, key."""


class Address(NamedTuple):
    """How a receiver is reached: token and secret of its listening connection, and its number on that connection."""

    token: int
    secret: str
    number: int


@dataclass(slots=True)
class Mark:
    """What one claimer remembers about one queue: the last lane it visited, and the end of its last straight claim."""

    lane: int = 0
    position: Position | None = None
    front_from: float = 0.0
    """The instant, on the loop's clock in milliseconds, at which claims start at the front again."""

    def begin(self, now: float) -> Position | None:
        """Where the next claim starts; None: at the front."""
        return self.position if now < self.front_from else None

    def claimed(self, begin: Position | None, end: Position | None, dead: int, now: float) -> None:
        """Learn from a claim: where it started and ended, and how many dead entries it read."""
        if end is not None:
            self.position = end
        if begin is None and self.position is not None and dead > DEAD_MAX:
            self.front_from = now + min(dead * FRONT_WAIT_MS_PER_DEAD, FRONT_WAIT_MS_MAX)

    def front_in_ms(self, now: float) -> int | None:
        """How long until claims start at the front again; None if they already do."""
        return round(self.front_from - now) + 1 if now < self.front_from else None


class Marks(dict[tuple[str, str, tuple[str, ...]], Mark]):
    """What is remembered about queues, by type, group and tenants."""

    def of(self, demand: Demand) -> Mark:
        """What is remembered about the queue that a demand names."""
        name = (demand.type, demand.group, demand.tenants)
        mark = self.get(name)
        if mark is None:
            if len(self) >= TYPES_MAX:
                del self[next(iter(self))]
            self[name] = mark = Mark()
        return mark


class StartedClaim(NamedTuple):
    """A claim, what is remembered about its queue, where it starts, and the demand that it parks."""

    claim: Claim
    mark: Mark
    begin: Position | None
    parked: list[Any] | None

    @classmethod
    def of(cls, claim: Claim, mark: Mark, clock_ms: float, addresses: Mapping[Receiver, Address]) -> StartedClaim:
        """Choose where the claim starts. Behind a mark, it parks nothing: the queue's front is slow to read then."""
        begin = mark.begin(clock_ms)
        return cls(claim, mark, begin, _parked(claim, addresses) if begin is None else None)


def _parked(claim: Claim, addresses: Mapping[Receiver, Address]) -> list[Any] | None:
    """The last demand of a claim that can be parked, as functions/park.sql reads it.

    Without one, the last demand that withdraws what its worker has parked: no number of jobs is too few to meet it.
    """
    parked: list[Any] | None = None
    withdrawn: list[Any] | None = None
    limit = 0
    for demand in claim.demands:
        limit += demand.limit
        if demand.receiver is not None and (address := addresses.get(demand.receiver)):
            if demand.parks:
                parked = [demand.worker, demand.lease_ms, *address, limit]
            elif demand.withdraws:
                withdrawn = [demand.worker, demand.lease_ms, *address, 0]
    return parked or withdrawn


class Awaited(NamedTuple):
    """Whether any process waits for results, and whether any waits for work; if none does, no notification is sent."""

    results: bool
    work: bool


class Step(NamedTuple):
    """What one statement did."""

    refused: set[int]
    activation: Activation
    awaited: Awaited
    has_capacity: bool
    """Whether other workers may find work that was held back."""


TYPE, GROUP = "t", "g"


def claims_document(claims: Sequence[StartedClaim]) -> list[dict[str, Any]]:
    """The claims as functions/activate.sql reads them.

    Sorted, so that two steps that pass the same gates (see functions/limits.sql) do so in the same order.
    """
    documents = [_claim_document(number, *claim) for number, claim in enumerate(claims)]
    return sorted(documents, key=itemgetter(TYPE, GROUP))


def _claim_document(
    number: int, claim: Claim, mark: Mark, begin: Position | None, parked: list[Any] | None
) -> dict[str, Any]:
    """One claim. The keys are parameters of a stored function, so they never change."""
    whole, demands = claim.combined, claim.demands
    document: dict[str, Any] = {
        "o": number,  # Notes refer to the claim by this number.
        TYPE: whole.type,
        GROUP: whole.group,
        "n": whole.limit,
        "w": [demand.worker for demand in demands],
        "l": [demand.lease_ms for demand in demands],
        "c": mark.lane,  # Turns continue with the lane after this one.
    }
    if len(demands) > 1:
        document["d"] = [demand.limit for demand in demands]
    if whole.tenants:
        document["i"] = whole.tenants
    if begin is not None:
        document["m"] = begin
    if parked is not None:
        document["p"] = parked
    return document


class Note(NamedTuple):
    """A row that is not a leased job, as the function `note` of functions/activate.sql makes it.

    Fields that a kind of note does not use are NULL.
    """

    what: str
    number: int
    """A refused key, the last lane visited, or the engine's current time."""
    one: int
    other: int
    """The number of a claim."""
    due_ms: int | None
    entries: int
    """How many index entries a claim has read."""


NOTE_COLUMNS: Final = itemgetter("type", "key", "attempts", "max_attempts", "lease_until_ms", "created_at_ms")
"""The columns of `leased` that hold the fields of a note, in order."""
ATTEMPT: Final = LeasedJob._fields.index("attempt")
"""The column that is NULL in notes. Read by index for speed, because every leased job is checked."""


def step_of(rows: list[Any], claims: Sequence[StartedClaim], demands: int, clock_ms: float) -> Step:
    """Separate leased jobs from notes; see functions/activate.sql for what each note means."""
    last = Note._make(NOTE_COLUMNS(rows.pop()))
    now_ms = last.number
    refused: set[int] = set()
    has_capacity = False
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    due: list[int] = []
    start = 0
    for index in [index for index, row in enumerate(rows) if row[ATTEMPT] is None]:
        note = Note._make(NOTE_COLUMNS(rows[index]))
        if note.what == "refused":
            refused.add(note.number)
        elif note.what == "room":
            has_capacity = True
        elif note.what == "due":
            due += [] if note.due_ms is None else [note.due_ms]
        else:
            started = claims[note.other]
            jobs = [LeasedJob._make(row) for row in rows[start:index]]
            claimed.append((started.claim, jobs))
            due += _learn(started, note, jobs, now_ms, clock_ms)
        start = index + 1
    leased, shares = distribute(claimed, demands)
    activation = Activation(leased, min(due, default=None), now_ms, shares)
    return Step(refused, activation, Awaited(results=bool(last.one), work=bool(last.other)), has_capacity)


def _learn(started: StartedClaim, note: Note, jobs: list[LeasedJob], now_ms: int, clock_ms: float) -> list[int]:
    """Remember where a claim ended; return the instants at which the next one may find more."""
    due = [] if note.due_ms is None else [note.due_ms]
    mark, visited_lane = started.mark, note.number
    if visited_lane:
        mark.lane = visited_lane
        return due
    end = (-jobs[-1].priority, jobs[-1].run_at_ms, jobs[-1].key) if jobs else None
    mark.claimed(started.begin, end, note.entries - len(jobs), clock_ms)
    front_in_ms = mark.front_in_ms(clock_ms)
    if front_in_ms is not None and len(jobs) < started.claim.combined.limit:
        due.append(now_ms + front_in_ms)
    return due
