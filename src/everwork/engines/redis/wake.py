"""Wake-ups: scripts publish when somebody has left word that he waits; one connection listens for the whole engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from everwork.engines.redis.connection import Connection
from everwork.engines.redis.wire import ConnectionLost, ReplyError, Wire
from everwork.exceptions import EngineError

POLL_SECONDS: Final = 1.0
"""A message may get lost with its connection: whoever waits long looks by himself this often."""
FINISHED: Final = ""
"""The name under which the waiters for results stand among the types."""


class Wakeups:
    """Who waits in this process, and what has rung so far."""

    def __init__(self, link: Connection, known: dict[str, int]) -> None:
        self.rings = 0
        self._link = link
        self._known = known
        self._rung: dict[str, int] = {}
        self._all_rung = 0
        self._waiting: dict[asyncio.Future[bool], frozenset[str]] = {}
        self._wire: Wire | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._may_listen = True
        tag = link.place.tag
        self._channels = {f"{tag}:work".encode(): "w", f"{tag}:done".encode(): "d"}

    def learn(self, number: int) -> None:
        """Remember how far the wake-ups had come when a script looked for work."""
        self._known["w"] = max(number, self._known["w"])

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None) -> bool:
        """Wait for one of the types to ring; a ring that came after `since` counts."""
        if self._is_closed or self._has_rung(types, since):
            return True
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_ms / 1000
        before = dict(self._known)
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting[future] = frozenset(types)
        try:
            # Whoever has a mark and a live connection has left word with his last look for work, if he got less than he
            # wanted; whoever got all of it has no room for more.
            must_look = not self._is_listening or since is None or types == [FINISHED]
            while not future.done():
                if must_look and await self._has_changed(types, before):
                    return True
                left = min(ends - loop.time(), POLL_SECONDS)
                if left <= 0:
                    break
                await asyncio.wait((future,), timeout=left)
                must_look = True
            return future.done() and future.result()
        finally:
            del self._waiting[future]

    async def close(self) -> None:
        """Let everybody go."""
        self._is_closed = True
        self._ring_all()
        if self._wire is not None:
            self._wire.close()
            await self._wire.ended

    @property
    def _is_listening(self) -> bool:
        return self._wire is not None and self._wire.is_open

    def _has_rung(self, types: Sequence[str], since: int | None) -> bool:
        return since is not None and (self._all_rung > since or any(self._rung.get(type, 0) > since for type in types))

    async def _has_changed(self, types: Sequence[str], before: dict[str, int]) -> bool:
        """Leave word, and look whether anything has rung meanwhile. An engine that is away rings for nobody."""
        kind = "d" if types == [FINISHED] else "w"
        try:
            if not self._is_listening and self._may_listen:
                await self._listen()
            number = int(await self._link.read("wait", kind, *(types if kind == "w" else ())))
        except EngineError:
            return False
        self._known[kind] = max(number, self._known[kind])
        return number != before[kind]

    async def _listen(self) -> None:
        async with self._starting:
            if self._is_listening or self._is_closed:
                return
            wire = await self._link.connect(self._heard)
            try:
                for channel in self._channels:
                    if type(await self._subscribed(wire, channel)) is ReplyError:
                        wire.close()  # Not allowed to listen: looking by oneself remains.
                        self._may_listen = False
                        return
            except ConnectionLost:
                return
            self._wire = wire
            self._void_marks()
            wire.ended.add_done_callback(lambda _: self._ring_all())

    async def _subscribed(self, wire: Wire, channel: bytes) -> Any:
        # A subscription is answered by a push and by no reply: what is asked after it shows that it is done.
        wire.tell(b"SUBSCRIBE", channel)
        return await wire.ask("PING")

    def _heard(self, push: list[Any]) -> None:
        if push[0] == b"message":
            self._ring(FINISHED if self._channels.get(push[1]) == "d" else push[2].decode())

    def _ring(self, type: str) -> None:
        self.rings += 1
        self._rung[type] = self.rings
        for future, types in self._waiting.items():
            if type in types and not future.done():
                future.set_result(True)

    def _void_marks(self) -> None:
        """What rang while nobody listened is unknown: whoever looked for work before must look again."""
        self.rings += 1
        self._all_rung = self.rings

    def _ring_all(self) -> None:
        self._void_marks()
        for future in self._waiting:
            if not future.done():
                future.set_result(True)
