"""The dependencies of HTTP handlers, and the caller of one request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from starlette.requests import Request

from everwork.core import checks
from everwork.server.http.framework.in_flight import InFlight
from everwork.server.http.framework.peer import client_address
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Principal
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService
from everwork.service.verb import Caller


class AuthorisedRequest:
    """One request, its caller, and the services for this caller."""

    def __init__(self, context: AppContext, request: Request, principal: Principal, *, is_person: bool = False) -> None:
        self.context = context
        self.request = request
        origin = partial(client_address, request.scope, context.settings.trusted_proxies)
        self.caller = Caller(principal, origin, is_person)

    @property
    def principal(self) -> Principal:
        """The holder of the caller's key."""
        return self.caller.principal

    @cached_property
    def jobs(self) -> Jobs:
        """The operations on jobs."""
        return Jobs(self.context.service, self.caller)

    @cached_property
    def admin(self) -> Admin:
        """The administrative operations."""
        return Admin(self.context.service, self.context.keys, self.caller)

    @cached_property
    def key(self) -> int:
        """The job key in the path."""
        return checks.known_key(self.request.path_params["key"])


API: Final = "rest"
"""The label of this API in metrics."""
PRINCIPAL: Final = "everwork.principal"
"""The scope key for a caller that the surrounding application has checked; a value of None means no access."""


@dataclass(frozen=True, slots=True)
class AppContext:
    """What handlers depend on. `stopping` is set when the server stops; `is_mounted`: inside another application."""

    service: JobService
    keys: KeyRing
    settings: Settings
    sampler: MetricsSampler
    readiness: Readiness
    metrics: Metrics = field(default_factory=Metrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    is_mounted: bool = False
    in_flight: InFlight = field(default_factory=InFlight)
