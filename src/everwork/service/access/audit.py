"""The audit log: who did what, when and from where. Entries are kept for ninety days."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from everwork.aio.clocks import host_clock_ms
from everwork.aio.retrying import retry_while_unavailable
from everwork.core import checks
from everwork.core.limits import AUDIT_DETAIL_BYTES_MAX, AUDIT_KEEP_MS, INSTANT_MS_MAX, LIST_LIMIT_MAX, NAME_CHARS_MAX
from everwork.engines.contract import Clock, Engine
from everwork.engines.values import Registered
from everwork.exceptions import EngineError
from everwork.logs import get_logger
from everwork.service.access.principal import Principal

log = get_logger("everwork")

AUDIT_KIND: Final = "audit"
UNREADABLE: Final = "unreadable"
TARGET_CHARS_MAX: Final = 1_024
TALLY_MS: Final = 60_000
"""How long a program's calls are counted in the same entry."""
WRITE_SECONDS: Final = 1.0
"""How often the entry of a busy program is written: a killed server loses the calls since the last write."""
TALLY_KEYS_MAX: Final = 100
TALLY_ENTRIES_MAX: Final = 10
"""How many entries per minute list the keys of the jobs that a program changed; jobs beyond that are only counted."""
TALLIES_MAX: Final = 1_000
"""How many tallies are kept in memory; beyond that, new addresses of the same key share one tally."""
SEVERAL_ORIGINS: Final = "several"
PURGE_MS: Final = 1_000
TALLY_DETAIL_CHARS_MAX: Final = 2_000


def elapsed_ms() -> int:
    """Milliseconds on a monotonic clock, so that setting the system time back does not keep a tally open."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative action. `name` identifies the entry and is the cursor to older entries."""

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

    def __init__(self, engine: Engine, clock: Clock = host_clock_ms, elapsed_ms: Clock = elapsed_ms) -> None:
        self._engine = engine
        self._clock = clock
        self._elapsed_ms = elapsed_ms
        self._number = itertools.count()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._purged_ms = elapsed_ms()
        self._writing: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

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
        """Record an action after it was performed; reusing a `name` replaces that entry but keeps its time."""
        name = name or self.new_name()
        entry = {
            "at_ms": int(name.partition("-")[0]),
            "key_id": who.id,
            "who": _line(who.name, NAME_CHARS_MAX),
            "action": action,
            "target": _line(target, TARGET_CHARS_MAX),
            "origin": _line(origin, NAME_CHARS_MAX),
            "detail": _bounded(detail or {}),
        }
        await self._engine.register(AUDIT_KIND, name, orjson.dumps(entry).decode(), AUDIT_KEEP_MS)

    async def record_call(
        self, who: Principal, action: str, target: str, origin: str, detail: Mapping[str, Any]
    ) -> None:
        """Record a change that a program made to a job; calls within the same minute are counted in one entry.

        The first call is recorded before it returns, the others within a second.
        """
        tally = self._tally(who, action, origin, target)
        tally.add(target, detail)
        if tally.calls > 1:
            self._schedule_write(tally)
            return
        try:
            await self._write(tally)
        except EngineError:
            self._schedule_write(tally)
            raise

    async def close(self) -> None:
        """Write pending entries."""
        self._closing.set()
        while self._writing:
            await asyncio.wait(self._writing)

    def _tally(self, who: Principal, action: str, origin: str, target: str) -> Tally:
        """The tally for a call; a new one is started when the current one cannot list any more jobs."""
        now_ms = self._elapsed_ms()
        origin = self._shared_origin(who, action, origin, now_ms)
        tally = self._tallies.get((who.id, action, origin))
        if tally is None or tally.until_ms <= now_ms:
            return self._new_tally(who, action, origin, now_ms + TALLY_MS)
        if tally.is_full and target not in tally.keys and tally.number < TALLY_ENTRIES_MAX:
            return self._new_tally(who, action, origin, tally.until_ms, tally.number + 1)
        return tally

    def _shared_origin(self, who: Principal, action: str, origin: str, now_ms: int) -> str:
        if (who.id, action, origin) in self._tallies:
            return origin
        self._purge(now_ms)
        return origin if len(self._tallies) < TALLIES_MAX else SEVERAL_ORIGINS

    def _new_tally(self, who: Principal, action: str, origin: str, until_ms: int, number: int = 1) -> Tally:
        tally = Tally(self.new_name(), who, action, origin, until_ms, number)
        self._tallies[who.id, action, origin] = tally
        return tally

    def _purge(self, now_ms: int) -> None:
        if now_ms - self._purged_ms >= PURGE_MS:
            self._purged_ms = now_ms
            self._tallies = {key: tally for key, tally in self._tallies.items() if tally.until_ms > now_ms}

    def _schedule_write(self, tally: Tally) -> None:
        if not tally.is_waiting:
            tally.is_waiting = True
            task = asyncio.get_running_loop().create_task(self._write_soon(tally))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write_soon(self, tally: Tally) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), WRITE_SECONDS)
        tally.is_waiting = False
        try:
            await retry_while_unavailable(lambda: self._write(tally), None)
        except EngineError as error:
            log.warning("the audit log could not be written", action=tally.action, calls=tally.calls, error=str(error))

    async def _write(self, tally: Tally) -> None:
        async with tally.lock:  # An earlier count must not be written after a later one.
            await self.record(tally.who, tally.action, tally.target, tally.origin, tally.detail(), name=tally.name)

    async def last(self, limit: int, below: str | None = None) -> list[AuditEntry]:
        """The newest entries, or those older than the entry `below`; newest first."""
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        if below is not None:
            checks.name("cursor", below)
        return [_entry(found) for found in await self._engine.last_registered(AUDIT_KIND, limit, below)]

    def new_name(self) -> str:
        """A unique name that sorts by time, then by order within a process."""
        return f"{self._clock():015d}-{next(self._number) % 1_000_000:06d}-{secrets.token_hex(4)}"


@dataclass(slots=True)
class Tally:
    """A program's calls with the same action, counted for up to a minute."""

    name: str
    who: Principal
    action: str
    origin: str
    until_ms: int
    number: int = 1
    """The index of this entry within the minute."""
    calls: int = 0
    keys: dict[str, None] = field(default_factory=dict)
    """The jobs without duplicates, in the order of their first calls."""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """The details shared by all calls."""
    is_waiting: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, target: str, detail: Mapping[str, Any]) -> None:
        """Count a call."""
        agreed = {name: value for name, value in self.shared.items() if detail.get(name) == value}
        self.shared = agreed if self.calls else detail
        self.calls += 1
        if not self.is_full:
            self.keys[target] = None

    @property
    def is_full(self) -> bool:
        """Whether the tally cannot list another job."""
        return len(self.keys) >= TALLY_KEYS_MAX

    @property
    def target(self) -> str:
        """The job if there was only one call, otherwise `*`."""
        return next(iter(self.keys)) if self.calls == 1 else "*"

    def detail(self) -> Mapping[str, Any]:
        """The details shared by all calls, the number of calls, and their jobs."""
        if self.calls == 1:
            return self.shared
        shared = self.shared if len(str(self.shared)) <= TALLY_DETAIL_CHARS_MAX else {}
        return {**shared, "changed": self.calls, "keys": list(self.keys)}


def _line(text: str, chars_max: int) -> str:
    """The text as one printable line of bounded length, so that external input can neither break nor flood an entry."""
    return "".join(c if c.isprintable() else "?" for c in text[:chars_max])


def _bounded(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return detail if len(orjson.dumps(detail)) <= AUDIT_DETAIL_BYTES_MAX else {"cut": "too long to store"}
    except TypeError:  # For example, a string that is not valid Unicode.
        return {"cut": "cannot be stored"}


def _entry(found: Registered) -> AuditEntry:
    """Parse a stored entry. An unreadable entry is shown as unreadable, because a silent gap would be worse."""
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
