"""The audit log: who did what, when and from where. Entries are kept for ninety days."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from everwork.core import checks
from everwork.core.limits import AUDIT_DETAIL_BYTES_MAX, AUDIT_KEEP_MS, INSTANT_MS_MAX, LIST_LIMIT_MAX, NAME_CHARS_MAX
from everwork.engines.contract import Clock, Engine
from everwork.engines.values import Registered
from everwork.service.access.keys import host_clock
from everwork.service.access.principal import Principal

AUDIT_KIND: Final = "audit"
UNREADABLE: Final = "unreadable"
TARGET_CHARS_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative action. `name` identifies the entry, and is the cursor to older ones."""

    name: str
    at_ms: int
    key_id: str
    who: str
    action: str
    target: str
    origin: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class Audit:
    """Writes and reads the audit log of one store."""

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
        """Record an action that was done; a `name` that was used before replaces that entry."""
        at_ms = self._clock()
        entry = {
            "at_ms": at_ms,
            "key_id": who.id,
            "who": _line(who.name, NAME_CHARS_MAX),
            "action": action,
            "target": _line(target, TARGET_CHARS_MAX),
            "origin": _line(origin, NAME_CHARS_MAX),
            "detail": _bounded(detail or {}),
        }
        await self._engine.register(AUDIT_KIND, name or self.new_name(), orjson.dumps(entry).decode(), AUDIT_KEEP_MS)

    async def last(self, limit: int, below: str | None = None) -> list[AuditEntry]:
        """The newest entries, or those older than the entry `below`; newest first."""
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        if below is not None:
            checks.name("cursor", below)
        return [_entry(found) for found in await self._engine.last_registered(AUDIT_KIND, limit, below)]

    def new_name(self) -> str:
        """A unique name that sorts by time, then by order within a process."""
        return f"{self._clock():015d}-{next(self._number) % 1_000_000:06d}-{secrets.token_hex(4)}"


def _line(text: str, chars_max: int) -> str:
    """One printable line of bounded length: external text must neither break an entry nor fill it."""
    return "".join(c if c.isprintable() else "?" for c in text[:chars_max])


def _bounded(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return detail if len(orjson.dumps(detail)) <= AUDIT_DETAIL_BYTES_MAX else {"cut": "too long to keep"}
    except TypeError:  # Such as a text that is not valid Unicode.
        return {"cut": "cannot be kept"}


def _entry(found: Registered) -> AuditEntry:
    """A stored entry. One that cannot be read is shown as such: a gap would be worse."""
    try:
        stored = orjson.loads(found.body)
        return AuditEntry(
            found.name,
            checks.whole_number("at_ms", stored["at_ms"], 0, INSTANT_MS_MAX),
            str(stored["key_id"]),
            str(stored["who"]),
            str(stored["action"]),
            str(stored["target"]),
            str(stored["origin"]),
            dict(stored["detail"]),
        )
    except (ValueError, TypeError, KeyError):
        return AuditEntry(found.name, 0, "", "", UNREADABLE, "", "")
