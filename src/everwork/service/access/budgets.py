"""Budgets: what one API key, and the keys of one tenant together, may have in progress at the same time.

On a server without authentication all callers are one caller, so the budgets apply to the server as a whole.
"""

from __future__ import annotations

from typing import Final

from everwork.core.limits import POLLERS_MAX, POLLERS_PER_KEY, REQUESTS_PER_KEY, SEARCHES_PER_KEY, TENANT_FACTOR
from everwork.service.access.poll_limits import PollLimits
from everwork.service.access.principal import Principal
from everwork.service.access.turns import Budget, Turns

BULK_MIN: Final = 50
"""A call that creates at least this many jobs takes a turn among the bulk calls of its key."""
LARGE_CHARS: Final = 262_144
"""So does one whose jobs have at least this many characters of variables."""

SLICE_ALONE: Final = 500
SLICE_FAIR: Final = 10
"""How many jobs of one call are processed before others are served: about 0.2 ms while several tenants are active."""
SLICE_CHARS: Final = 65_536
"""How many characters of one call are processed before others are served, however few jobs have them."""


class Slices:
    """The work of one large call, in slices. Others go first after each."""

    __slots__ = ("_chars", "_jobs", "_principal", "_turns", "size")

    def __init__(self, turns: Turns, principal: Principal, size: int) -> None:
        self.size = size
        """How many jobs make a slice, unless they are large."""
        self._turns = turns
        self._principal = principal
        self._jobs = 0
        self._chars = 0

    def is_full(self, chars: int = 0, jobs: int = 1) -> bool:
        """Count jobs with this many characters; True if the slice is full, and the caller must `give_way`."""
        self._jobs += jobs
        self._chars += chars
        return self._jobs >= self.size or self._chars >= SLICE_CHARS

    async def give_way(self) -> None:
        """Begin the next slice, after others."""
        self._jobs = self._chars = 0
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
        self.polls = PollLimits(pollers_per_type, per_key=pollers_per_key, tenant_factor=tenant_factor)

    def slices(self, principal: Principal) -> Slices:
        """The slices of a large call."""
        return Slices(self.requests, principal, self.slice_size)

    @property
    def slice_size(self) -> int:
        """How many jobs of one call to process before other callers are served."""
        return SLICE_FAIR if self.requests.is_contended else SLICE_ALONE
