"""Budgets: what one API key, and the keys of one tenant together, may have in progress at the same time.

On a server without authentication all callers are one caller, so the budgets apply to the server as a whole.
"""

from __future__ import annotations

from typing import Final

from everwork.core.limits import POLLERS_MAX, POLLERS_PER_KEY, REQUESTS_PER_KEY, SEARCHES_PER_KEY, TENANT_FACTOR
from everwork.service.access.poll_limits import PollLimits
from everwork.service.access.turns import Budget, Turns

BULK_MIN: Final = 50
"""A call that creates at least this many jobs takes a turn among the bulk calls of its key."""

SLICE_ALONE: Final = 500
SLICE_FAIR: Final = 10
"""How many jobs of one call are processed before others are served: about 0.2 ms while several tenants are active."""


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

    @property
    def slice_size(self) -> int:
        """How many jobs of one call to process before other callers are served."""
        return SLICE_FAIR if self.requests.is_contended else SLICE_ALONE
