"""Who calls over HTTP, a program or a person: what his key allows, and where he comes from."""

from __future__ import annotations

from functools import cached_property

from starlette.requests import Request

from everwork.core import checks
from everwork.server.http.framework.origin import origin_of
from everwork.server.http.framework.parts import Parts
from everwork.service.access.principal import Principal
from everwork.service.admin import Administration
from everwork.service.desk import Desk


class Caller:
    """The part that every request has."""

    def __init__(self, parts: Parts, request: Request, principal: Principal) -> None:
        self.parts = parts
        self.request = request
        self.principal = principal

    @cached_property
    def desk(self) -> Desk:
        """The verbs that the caller's key allows."""
        return Desk(self.parts.service, self.principal)

    @cached_property
    def administration(self) -> Administration:
        """The verbs of operators; each is recorded with its origin."""
        return self.parts.administration(self.principal, self.origin)

    @cached_property
    def origin(self) -> str:
        """Where the call comes from."""
        return origin_of(self.request.scope, self.parts.settings.trusted_proxies)

    @cached_property
    def key(self) -> int:
        """The job key in the path."""
        return checks.job_key(self.request.path_params["key"])
