"""Budgets: what one API key, and the keys of one tenant together, may have in progress at the same time.

A server without authentication treats all callers as one, so the budgets apply to the server as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from everwork.core.limits import (
    POLLERS_MAX,
    POLLERS_PER_KEY,
    POLLERS_TOTAL_MAX,
    REQUESTS_PER_KEY,
    SEARCHES_PER_KEY,
    TENANT_FACTOR,
)
from everwork.exceptions import TooManyRequests
from everwork.service.access.principal import Party, Principal
from everwork.service.access.turns import BUSY_RETRY_MS, Budget, Turns

T = TypeVar("T")

BULK_MIN: Final = 50
"""A call that creates at least this many jobs takes a turn among the bulk calls of its key."""
LARGE_CHARS: Final = 262_144
"""So does one whose jobs have at least this many characters of variables."""

SLICE_ALONE: Final = 500
SLICE_FAIR: Final = 10
"""How many jobs of one call are processed before others are served: about 0.2 ms while several tenants are active."""
SLICE_CHARS: Final = 65_536
"""How many characters of one call are processed before others are served, regardless of the number of jobs."""
SLICE_GROWTH: Final = 8
"""The factor by which the next step of a slice grows while its jobs are small."""

READS_MAX: Final = 16
"""How many single jobs one tenant reads over gRPC at a time."""


class Slices:
    """The work of one large call, in slices, after each of which other callers are served."""

    __slots__ = ("_principal", "_turns", "size")

    def __init__(self, turns: Turns, principal: Principal, size: int) -> None:
        self.size = size
        """How many jobs make a slice, unless they are large."""
        self._turns = turns
        self._principal = principal

    async def run(self, values: Sequence[T], work: Callable[[Sequence[T]], int]) -> None:
        """Process a few values at a time; `work` returns their characters. Steps grow while the values are small."""
        start, step, jobs, chars = 0, 1, 0, 0
        while start < len(values):
            some = values[start : start + step]
            worked = work(some)
            start, jobs, chars = start + step, jobs + step, chars + worked
            step = min(step * SLICE_GROWTH, self.size) if worked < SLICE_CHARS else 1
            if jobs >= self.size or chars >= SLICE_CHARS:
                jobs = chars = 0
                await self.give_way()

    async def give_way(self) -> None:
        """Let other callers go first, then begin the next slice."""
        await self._turns.give_way(self._principal)


class Budgets:
    """The budgets of a service."""

    def __init__(
        self,
        *,
        requests_per_key: int = REQUESTS_PER_KEY,
        searches_per_key: int = SEARCHES_PER_KEY,
        pollers_per_key: int = POLLERS_PER_KEY,
        pollers_per_type: int = POLLERS_MAX,
        tenant_factor: int = TENANT_FACTOR,
    ) -> None:
        self.requests = Turns(Budget("requests", "requests_per_key", requests_per_key, tenant_factor, 1, 256))
        """All requests, except while they wait for a job."""
        self.searches = Turns(Budget("searches", "searches_per_key", searches_per_key, tenant_factor, 1, 1, 2))
        """Searches for a text in variables or errors: they read far more than they return."""
        self.bulk = Turns(Budget("bulk calls", "requests_per_key", requests_per_key, tenant_factor, 1, 1, 2))
        """Calls that create many jobs."""
        self.lists = Turns(Budget("lists", "requests_per_key", requests_per_key, tenant_factor, 1, 1, 2))
        """Lists of jobs over gRPC: each can take as much memory as the largest page. REST counts their bytes itself."""
        self.reads = Turns(
            Budget("reads of jobs", "requests_per_key", requests_per_key, tenant_factor, 1, READS_MAX, READS_MAX)
        )
        """Reads of single jobs over gRPC: a few large ones at a time are as fast, and take little memory."""
        self.polls = PollLimits(pollers_per_type, per_key=pollers_per_key, tenant_factor=tenant_factor)

    def slices(self, principal: Principal) -> Slices:
        """The slices of a large call."""
        return Slices(self.requests, principal, self.slice_size)

    @property
    def slice_size(self) -> int:
        """How many jobs of one call to process before other callers are served."""
        return SLICE_FAIR if self.requests.is_contended else SLICE_ALONE


class PollLimits:
    """Counts waiting polls, so that no key affects another.

    `caller` is the id of the API key, and `party` identifies the keys that share its budget (`Principal.party`).
    """

    def __init__(
        self,
        per_type: int,
        total: int = POLLERS_TOTAL_MAX,
        *,
        per_key: int = POLLERS_PER_KEY,
        tenant_factor: int = TENANT_FACTOR,
    ) -> None:
        self._per_type = per_type
        self._total = total
        self._per_key = per_key
        self._per_party = per_key * tenant_factor
        self._of_type: Counter[tuple[str, str]] = Counter()
        self._of_caller: Counter[str] = Counter()
        self._of_party: Counter[Party] = Counter()
        self._waiting = 0

    @contextmanager
    def admitted(self, caller: str, type: str, party: Party = "") -> Iterator[None]:
        """Count one poll while it waits; refused if the key or its tenant has too many."""
        party = party or caller
        self._require_room(caller, type, party)
        self._of_type[caller, type] += 1
        self._of_caller[caller] += 1
        self._of_party[party] += 1
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            decrement(self._of_type, (caller, type))
            decrement(self._of_caller, caller)
            decrement(self._of_party, party)

    def waiting(self, type: str) -> int:
        """How many polls are waiting for a type, for all keys together."""
        return sum(polls for (_, one), polls in self._of_type.items() if one == type)

    def _require_room(self, caller: str, type: str, party: Party) -> None:
        if self._of_type[caller, type] >= self._per_type:
            raise _too_many(f"{self._per_type:,} polls of this API key are waiting for jobs of type '{type}'")
        if self._of_caller[caller] >= self._per_key:
            raise _too_many(f"{self._per_key:,} polls of this API key are waiting (setting pollers_per_key)")
        own = self._of_party[party]
        if own >= self._per_party:
            reason = f"{own:,} polls of this tenant's API keys are waiting"
            raise _too_many(f"{reason} (settings pollers_per_key and tenant_factor)")
        if has_its_share(own, self._waiting, self._total, len(self._of_party)):
            raise _too_many(f"the server has reached its limit of waiting polls, {own:,} of them from {_whose(party)}")


def _whose(party: Party) -> str:
    return "this API key" if isinstance(party, str) else "this tenant"


def has_its_share(own: int, used: int, total: int, owners: int) -> bool:
    """Whether the server is full and has no more for an owner: each keeps an equal share, and may always have one."""
    return own > 0 and used >= total and own >= total // owners


def decrement(counter: Counter[T], name: T) -> None:
    """Decrement a count; counts of zero are removed."""
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


def _too_many(reason: str) -> TooManyRequests:
    return TooManyRequests(f"too many workers: {reason}; retry later", BUSY_RETRY_MS)
