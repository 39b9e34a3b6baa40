"""The audit log: who did what to the whole store, when and from where. Entries are kept for ninety days."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson

from everwork.aio.loops import shielded
from everwork.core import checks
from everwork.core.limits import AUDIT_DETAIL_BYTES_MAX, AUDIT_KEEP_MS, INSTANT_MS_MAX, LIST_LIMIT_MAX, NAME_CHARS_MAX
from everwork.engines.contract import Clock, Engine
from everwork.engines.values import Registered
from everwork.service.access.keys import host_clock
from everwork.service.access.principal import Permission, Principal

AUDIT_KIND: Final = "audit"
UNREADABLE: Final = "unreadable"
TARGET_CHARS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative action. `name` is the entry's own, and the cursor of what is older."""

    name: str
    at_ms: int
    key_id: str
    who: str
    action: str
    target: str
    origin: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class Audit:
    """Writes and reads the log of one store."""

    def __init__(self, engine: Engine, clock: Clock = host_clock) -> None:
        self._engine = engine
        self._clock = clock
        self._number = itertools.count()

    async def record(
        self,
        who: Principal,
        action: str,
        target: str,
        origin: str,
        detail: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        """Note an action that has been done; with a `name` that was used before, in the place of that entry."""
        at_ms = self._clock()
        said = {
            "at_ms": at_ms,
            "key_id": who.id,
            "who": _line(who.name, NAME_CHARS_MAX),
            "action": action,
            "target": _line(target, TARGET_CHARS_MAX),
            "origin": _line(origin, NAME_CHARS_MAX),
            "detail": _bounded(detail or {}),
        }
        await self._engine.register(AUDIT_KIND, name or self.new_name(), orjson.dumps(said).decode(), AUDIT_KEEP_MS)

    async def last(self, limit: int, below: str | None = None) -> list[AuditEntry]:
        """The newest entries, or those older than the entry `below`; newest first."""
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        if below is not None:
            checks.name("cursor", below)
        return [_entry(found) for found in await self._engine.last_registered(AUDIT_KIND, limit, below)]

    def new_name(self) -> str:
        """Sorts by time, then by the order inside a process; the rest makes it one of a kind."""
        return f"{self._clock():015d}-{next(self._number) % 1_000_000:06d}-{secrets.token_hex(4)}"


def _line(text: str, chars_max: int) -> str:
    """What came from outside must not stop an entry, nor fill it."""
    return "".join(c if c.isprintable() else "?" for c in text[:chars_max])


def _bounded(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return detail if len(orjson.dumps(detail)) <= AUDIT_DETAIL_BYTES_MAX else {"cut": "too long to keep"}
    except TypeError:  # A text that is no Unicode, for example.
        return {"cut": "cannot be kept"}


def _entry(found: Registered) -> AuditEntry:
    """What an entry says. One that somebody has spoilt is shown as such: a gap would be worse."""
    try:
        said = orjson.loads(found.body)
        return AuditEntry(
            found.name,
            checks.whole_number("at_ms", said["at_ms"], 0, INSTANT_MS_MAX),
            str(said["key_id"]),
            str(said["who"]),
            str(said["action"]),
            str(said["target"]),
            str(said["origin"]),
            dict(said["detail"]),
        )
    except (ValueError, TypeError, KeyError):
        return AuditEntry(found.name, 0, "", "", UNREADABLE, "", "")


T = TypeVar("T")


class AuditedCaller:
    """Who calls, and where the call came from."""

    __slots__ = ("_audit", "origin", "principal")

    def __init__(self, audit: Audit, principal: Principal, origin: str) -> None:
        self._audit = audit
        self.principal = principal
        self.origin = origin

    def _may_change(self, **names: object) -> None:
        self.principal.require(Permission.ADMIN)
        self.principal.require_unbound()
        for name, value in names.items():
            checks.name(name, value)

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

        return await shielded(act_and_record())

    async def _record(self, action: str, target: str, detail: Mapping[str, Any] | None) -> None:
        await self._audit.record(self.principal, action, target, self.origin, detail)
