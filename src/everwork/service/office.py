"""One caller who administers: what the key allows is checked, and what is done stands in the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from everwork.aio.loops import to_the_end
from everwork.core import checks
from everwork.service.access.audit import Audit
from everwork.service.access.principal import Permission, Principal

T = TypeVar("T")


class Office:
    """Who calls, and where the call came from."""

    __slots__ = ("_audit", "origin", "principal")

    def __init__(self, audit: Audit, principal: Principal, origin: str) -> None:
        self._audit = audit
        self.principal = principal
        self.origin = origin

    def _may_change(self, **names: object) -> None:
        self.principal.require(Permission.ADMIN)
        self.principal.require_unbound()
        for field, value in names.items():
            checks.name(field, value)

    def _may_read(self) -> None:
        if not self.principal.allows(Permission.ADMIN):
            self.principal.require(Permission.JOBS_READ)
        self.principal.require_unbound()

    async def _noted(
        self, action: str, target: str, act: Callable[[], Awaitable[T]], detail: Mapping[str, Any] | None = None
    ) -> T:
        """Do something and write it down. What was refused has not been done."""

        async def act_and_record() -> T:
            result = await act()
            await self._record(action, target, detail)
            return result

        return await to_the_end(act_and_record())

    async def _record(self, action: str, target: str, detail: Mapping[str, Any] | None) -> None:
        await self._audit.record(self.principal, action, target, self.origin, detail)
