"""The streams and pollers that work through this process: kept in memory, and written to the registry in one entry.

A poll costs no write. The list is bounded, and a caller that polls under many names gets only its share of it.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from everwork.aio.clocks import host_clock_ms
from everwork.aio.loops import BackgroundLoop
from everwork.core.leasing import Demand
from everwork.exceptions import EngineError
from everwork.service.fleet.entries import CLIENT_TYPES_MAX, CLIENTS_MAX, POLLER, STREAM, ProcessEntry
from everwork.service.fleet.live import BEAT_SECONDS, FLEET_TTL_MS, LiveFleet

WRITE_SECONDS: Final = 2.0
"""Changes are written at most this often."""
LINGER_SECONDS: Final = FLEET_TTL_MS / 1000
"""How long a poller is listed after its last poll."""

PollerKey = tuple[str, str]
"""Identifies a poller: the id of an API key, and the name of a worker."""


class LiveStream(Protocol):
    """A stream as it is listed, once its worker is known."""

    @property
    def poller_key(self) -> PollerKey:
        """The id of the API key, and the worker's name."""

    @property
    def types(self) -> Iterable[str]:
        """The job types that the stream receives."""

    @property
    def running(self) -> int:
        """How many jobs are leased to the stream."""

    @property
    def ended_jobs(self) -> int:
        """How many outcomes the stream has reported."""


class _Poller:
    __slots__ = ("heard_at", "started_at_ms", "types", "waiting")

    def __init__(self, now: float) -> None:
        self.started_at_ms = host_clock_ms()
        self.types: dict[str, float] = {}
        self.waiting = 0
        self.heard_at = now


class ClientWorkers:
    """The streams and pollers of one process. Bound to one event loop."""

    def __init__(self, fleet: LiveFleet, holder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._holder = holder
        self._clock = clock
        self._name = f"{holder}-{secrets.token_hex(3)}"
        self._streams: dict[LiveStream, int] = {}
        """The open streams, each with its start time."""
        self._stream_keys: Counter[PollerKey] = Counter()
        self._pollers: dict[PollerKey, _Poller] = {}
        self._of_caller: Counter[str] = Counter()
        self._refused: dict[str, float] = {}
        """Callers with unlisted pollers, each with the time at which one was last left out."""
        self._loop: BackgroundLoop | None = None
        self._is_changed = False
        self._is_written = False
        self._written_at = 0.0

    def add(self, stream: LiveStream) -> None:
        """List a stream."""
        self._streams[stream] = host_clock_ms()
        self._stream_keys[stream.poller_key] += 1
        self.note_change()

    def remove(self, stream: LiveStream) -> None:
        """Remove a stream from the list."""
        if self._streams.pop(stream, None) is not None:
            self._stream_keys[stream.poller_key] -= 1
            self._stream_keys += Counter()  # Remove entries whose count is zero.
            self.note_change()

    @contextmanager
    def polling(self, caller: str, demand: Demand) -> Iterator[None]:
        """List a poller during this context and for a while afterward; a stream's own feed does not count as a poll."""
        poller = self._poller(caller, demand.worker)
        if poller is None:
            yield
            return
        name = type_name(demand.type, demand.group)
        if name in poller.types or len(poller.types) < CLIENT_TYPES_MAX:
            poller.types[name] = self._clock()
        poller.waiting += 1
        try:
            yield
        finally:
            poller.waiting -= 1
            poller.heard_at = self._clock()

    async def close(self) -> None:
        """Stop writing and remove the list; if the store is unavailable, the list expires."""
        if self._loop is not None:
            await self._loop.abort()
            self._loop = None
            if self._is_written:
                with suppress(EngineError):
                    await self._fleet.end_clients(self._name)

    # Pollers ------------------------------------------------------------------------------------

    def _poller(self, caller: str, worker: str) -> _Poller | None:
        """The entry of a poller; None for a stream's feed, or if its caller has used up its share of the list."""
        key = caller, worker
        found = self._pollers.get(key)
        if found is not None:
            return found
        if key in self._stream_keys:
            return None
        if len(self._pollers) >= CLIENTS_MAX and not self._make_room(caller):
            self._refused[caller] = self._clock()
            return None
        self._pollers[key] = poller = _Poller(self._clock())
        self._of_caller[caller] += 1
        self.note_change()
        return poller

    def _make_room(self, caller: str) -> bool:
        """Drop a poller of the caller with the most pollers, unless the given caller has used up its own share."""
        share = CLIENTS_MAX // len({*self._of_caller, caller})
        if self._of_caller[caller] >= share:
            return False
        most = max(self._of_caller, key=lambda one: self._of_caller[one])
        self._drop(next(key for key in self._pollers if key[0] == most))
        return True

    def _drop(self, key: PollerKey) -> None:
        del self._pollers[key]
        self._of_caller[key[0]] -= 1
        if not self._of_caller[key[0]]:
            del self._of_caller[key[0]]

    def _drop_silent(self, now: float) -> None:
        silent = [key for key, one in self._pollers.items() if not one.waiting and now - one.heard_at > LINGER_SECONDS]
        for key in silent:
            self._drop(key)
            self._is_changed = True
        for poller in self._pollers.values():
            if len(poller.types) > 1:
                poller.types = {
                    type: at for type, at in poller.types.items() if poller.waiting or now - at < LINGER_SECONDS
                }
        self._refused = {caller: at for caller, at in self._refused.items() if now - at < LINGER_SECONDS}

    # The registry -------------------------------------------------------------------------------

    def note_change(self) -> None:
        """Write the list soon: a stream or poller has connected or left, or polls for another type."""
        self._is_changed = True
        if self._loop is None:
            self._loop = BackgroundLoop("everwork-clients", self.write, WRITE_SECONDS)
            self._loop.start()

    async def write(self) -> bool:
        """Write changes, or a heartbeat if one is due."""
        now = self._clock()
        self._drop_silent(now)
        if not self._is_changed and now - self._written_at < BEAT_SECONDS:
            return False
        self._is_changed = False
        if self._streams or self._pollers:
            self._is_written = True
            entries = [*self._stream_entries(), *self._poller_entries(now)]
            left_out = max(0, len(self._streams) - CLIENTS_MAX) + len(self._refused)
            await self._fleet.beat_clients(self._name, entries, left_out)
        elif self._is_written:
            await self._fleet.end_clients(self._name)
            self._is_written = False
        self._written_at = now
        return False

    def _stream_entries(self) -> Iterator[ProcessEntry]:
        for stream, started_at_ms in itertools.islice(self._streams.items(), CLIENTS_MAX):
            yield ProcessEntry(
                name=stream.poller_key[1],
                kind=STREAM,
                types=tuple(sorted(set(stream.types))[:CLIENT_TYPES_MAX]),
                via=self._holder,
                state="running",
                started_at_ms=started_at_ms,
                running=stream.running,
                ended=stream.ended_jobs,
            )

    def _poller_entries(self, now: float) -> Iterator[ProcessEntry]:
        for (_, worker), poller in self._pollers.items():
            yield ProcessEntry(
                name=worker,
                kind=POLLER,
                types=tuple(sorted(poller.types)),
                via=self._holder,
                state="running",
                started_at_ms=poller.started_at_ms,
                quiet_ms=0 if poller.waiting else round((now - poller.heard_at) * 1000),
            )


def type_name(type: str, group: str) -> str:
    """A type as it is listed: with its group, unless that is the default group."""
    return f"{type} (group {group})" if group else type
