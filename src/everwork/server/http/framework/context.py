"""Who calls over HTTP, a program or a person: what his key allows, and where he comes from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from starlette.requests import Request

from everwork.core import checks
from everwork.server.http.framework.origin import origin_of
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
    """The part that every request has."""

    def __init__(self, parts: AppContext, request: Request, principal: Principal) -> None:
        self.parts = parts
        self.request = request
        self.principal = principal

    @cached_property
    def jobs(self) -> Jobs:
        """The verbs that the caller's key allows."""
        return Jobs(self.parts.service, self.principal)

    @cached_property
    def admin(self) -> Admin:
        """The verbs of operators; each is recorded with its origin."""
        return self.parts.admin(self.principal, self.origin)

    @cached_property
    def origin(self) -> str:
        """Where the call comes from."""
        return origin_of(self.request.scope, self.parts.settings.trusted_proxies)

    @cached_property
    def key(self) -> int:
        """The job key in the path."""
        return checks.job_key(self.request.path_params["key"])


DOOR: Final = "rest"
"""The door's name in figures and in the audit."""


@dataclass(frozen=True, slots=True)
class AppContext:
    """The service, the keys, and what else a handler may need. `stopping` is set when the server stops."""

    service: JobService
    keys: KeyRing
    audit: Audit
    settings: Settings
    sampler: MetricsSampler
    readiness: Readiness
    metrics: Metrics = field(default_factory=Metrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def admin(self, principal: Principal, origin: str) -> Admin:
        """The verbs of operators for one caller."""
        return Admin(self.service, self.keys, self.audit, principal, origin)
