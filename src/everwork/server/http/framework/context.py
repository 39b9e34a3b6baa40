"""The dependencies of HTTP handlers, and the caller of one request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from starlette.requests import Request

from everwork.core import checks
from everwork.server.http.framework.peer import client_address
from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.audit import Audit
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Principal
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService


class Caller:
    """One request, the principal of its key, and the services that this principal may use."""

    def __init__(self, context: AppContext, request: Request, principal: Principal) -> None:
        self.context = context
        self.request = request
        self.principal = principal

    @cached_property
    def jobs(self) -> Jobs:
        """The operations on jobs, authorised for the caller."""
        return Jobs(self.context.service, self.principal)

    @cached_property
    def admin(self) -> Admin:
        """The operations of operators; each is audited with the caller's origin."""
        return self.context.admin(self.principal, self.origin)

    @cached_property
    def origin(self) -> str:
        """The caller's address, as the audit log records it."""
        return client_address(self.request.scope, self.context.settings.trusted_proxies)

    @cached_property
    def key(self) -> int:
        """The job key in the path."""
        return checks.job_key(self.request.path_params["key"])


API: Final = "rest"
"""The label of this API in metrics."""


@dataclass(frozen=True, slots=True)
class AppContext:
    """What handlers depend on. `stopping` is set when the server stops."""

    service: JobService
    keys: KeyRing
    audit: Audit
    settings: Settings
    sampler: MetricsSampler
    readiness: Readiness
    metrics: Metrics = field(default_factory=Metrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def admin(self, principal: Principal, origin: str) -> Admin:
        """The operations of operators for one caller."""
        return Admin(self.service, self.keys, self.audit, principal, origin)
