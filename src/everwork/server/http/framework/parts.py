"""What the REST door is made of, handed to every handler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from everwork.server.metrics import Metrics
from everwork.server.readiness import Readiness
from everwork.server.settings import Settings
from everwork.service.access.audit import Audit
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Principal
from everwork.service.admin import Administration
from everwork.service.monitor.sampler import Pulse
from everwork.service.service import JobService

DOOR: Final = "rest"
"""The door's name in figures and in the audit."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The service, the keys, and what else a handler may need. `stopping` is set when the server stops."""

    service: JobService
    keys: KeyRing
    audit: Audit
    settings: Settings
    pulse: Pulse
    readiness: Readiness
    metrics: Metrics = field(default_factory=Metrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def administration(self, principal: Principal, origin: str) -> Administration:
        """The verbs of operators for one caller."""
        return Administration(self.service, self.keys, self.audit, principal, origin)
