"""Wake-ups: scripts publish them to processes that set a flag; one connection listens for the whole engine."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from everwork.aio.wakeup import Wake, Watch, Watches
from everwork.core.leasing import Demand, Receiver
from everwork.core.limits import TYPES_MAX
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.records import handed_job
from everwork.engines.redis.wire import ConnectionLost, ReplyError, Wire
from everwork.engines.take_back import TakeBack
from everwork.exceptions import EngineError

POLL_SECONDS: Final = 1.0
"""How often a waiter polls: a message may get lost with its connection."""
CLOSE_SECONDS: Final = 2.0
WORK: Final = "work"
DONE: Final = "done"
"""The kinds of wake-ups, named after their channels: there may be work, or a job has finished."""
FINISHED: Final = ""
"""Used in place of a type by callers that wait for finished jobs."""
_NO_TOKENS: Final[Mapping[Receiver, str]] = {}


class Wakeups:
    """The waiters of this process, the wake-ups it has received, and the workers to which jobs are handed over."""

    def __init__(self, connection: Connection, last_numbers: dict[str, int], take_back: TakeBack) -> None:
        self.received = 0
        self._take_back = take_back
        self._connection = connection
        self._last_numbers = last_numbers
        self._received_at: dict[str, int] = {}
        self._all_received_at = 0
        self._watches = Watches()
        self._wire: Wire | None = None
        self._starting = asyncio.Lock()
        self._is_closed = False
        self._may_listen = True
        self._may_hand_over = not connection.url.replicas
        """With required replicas, nothing is handed over: a job must not start before the replicas have its lease."""
        self._tokens: WeakKeyDictionary[Receiver, str] = WeakKeyDictionary()
        self._receivers: WeakValueDictionary[bytes, Receiver] = WeakValueDictionary()
        """The receivers that can be reached now, by channel. A token is never used by another connection."""
        self._moves = 0
        self._channels = {f"{connection.url.tag}:{kind}".encode(): kind for kind in (WORK, DONE)}

    def note_work(self, number: int) -> None:
        """Note the number of the last wake-up for work at the time of a claim."""
        self._last_numbers[WORK] = max(number, self._last_numbers[WORK])

    async def tokens(self, demands: Sequence[Demand]) -> Mapping[Receiver, str]:
        """The tokens of the channels on which these demands' receivers listen; without one, a demand is not parked."""
        if self._wire is not None and self._moves != self._connection.moves:
            self._wire.close()  # Only the server that has the store hands jobs over.
            self._on_lost(self._wire)
        for demand in demands:
            if demand.receiver is not None and demand.parks and demand.receiver not in self._tokens:
                if not (self._may_hand_over and self._may_listen):
                    return _NO_TOKENS
                with suppress(EngineError):
                    await self._join(demand.receiver)
        return self._tokens

    async def _join(self, receiver: Receiver) -> None:
        """Subscribe a receiver to its own channel."""
        await self._listen()
        wire, token = self._wire, secrets.token_hex(8)
        if wire is None or not wire.is_open:
            return
        channel = f"{self._connection.url.tag}:hand:{token}".encode()
        self._receivers[channel] = receiver
        with suppress(ConnectionLost):
            if type(await wire.request("SUBSCRIBE", channel)) is ReplyError:
                self._may_hand_over = False  # This user may not subscribe to the channel.
            elif wire is self._wire and wire.is_open:
                self._tokens[receiver] = token

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None) -> bool:
        """Wait for a wake-up of one of the types; one that came after the mark `since` counts."""
        if self._is_closed or self._came_after(types, since):
            return True
        before = dict(self._last_numbers)
        is_woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        watch = self._watches.add(is_woken.set_result, timeout_ms, types)
        try:
            # If the engine is listening, a caller with a mark set its flag with its last claim, unless that claim
            # returned as many jobs as its limit; then the caller has no capacity for more.
            must_poll = not self._is_listening or since is None or types == [FINISHED]
            while not is_woken.done():
                if must_poll and await self._has_changed(types, before):
                    return True
                await asyncio.wait((is_woken,), timeout=POLL_SECONDS)
                must_poll = True
            return is_woken.result()
        finally:
            watch.cancel()

    def watch(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch | None:
        """Call `wake` when `wait` would return, or when it would poll; None if it would have to poll now."""
        if self._is_closed or self._came_after(types, since):
            return asyncio.get_running_loop().call_soon(wake, True)
        if not self._is_listening:
            return None
        # The last claim has set this caller's flags, and the next claim, no later than the next poll, sets them again.
        return self._watches.add(wake, min(timeout_ms, POLL_SECONDS * 1000), types)

    async def close(self) -> None:
        """Wake all waiters and stop listening; after this, no job is handed over to this process."""
        self._is_closed = True
        self._wake_all()
        wire = self._wire
        if wire is not None:
            if self._tokens:  # Otherwise, a job may be handed over before the server notices that this closes.
                with suppress(ConnectionLost, TimeoutError):
                    await asyncio.wait_for(wire.request("RESET"), CLOSE_SECONDS)
            wire.close()
            await wire.ended
        await self._take_back.close()

    @property
    def _is_listening(self) -> bool:
        return self._wire is not None and self._wire.is_open

    def _came_after(self, types: Sequence[str], since: int | None) -> bool:
        if since is None:
            return False
        return self._all_received_at > since or any(self._received_at.get(type, 0) > since for type in types)

    async def _has_changed(self, types: Sequence[str], before: dict[str, int]) -> bool:
        """Set the waiting flag, and check for wake-ups since `before`; False while the server is unavailable."""
        kind = DONE if types == [FINISHED] else WORK
        try:
            if not self._is_listening and self._may_listen:
                await self._listen()
            number = int(await self._connection.read("wait", kind, *(types if kind == WORK else ())))
        except EngineError:
            return False
        self._last_numbers[kind] = max(number, self._last_numbers[kind])
        return number != before[kind]

    async def _listen(self) -> None:
        async with self._starting:
            if self._is_listening or self._is_closed:
                return
            moves = self._connection.moves
            wire = await self._connection.connect(self._on_push)
            try:
                for channel in self._channels:
                    if type(await wire.request("SUBSCRIBE", channel)) is ReplyError:
                        wire.close()  # This user is not allowed to subscribe: fall back to polling.
                        self._may_listen = False
                        return
            except ConnectionLost:
                return
            if self._wire is not None:
                self._on_lost(self._wire)
            self._wire, self._moves = wire, moves
            self._void_marks()
            wire.ended.add_done_callback(lambda _: self._on_lost(wire))

    def _on_push(self, push: list[Any]) -> None:
        if push[0] != b"message":
            return
        _, channel, message = push
        kind = self._channels.get(channel)
        if kind is not None:
            self._wake(FINISHED if kind == DONE else message.decode())
        elif receiver := self._receivers.get(channel):
            receiver.handed(handed_job(message))
        elif not self._is_closed:
            self._take_back.add(handed_job(message))

    def _wake(self, type: str) -> None:
        self.received += 1
        if len(self._received_at) >= TYPES_MAX and type not in self._received_at:
            self._received_at.clear()
            self._all_received_at = self.received
        self._received_at[type] = self.received
        self._watches.wake(lambda types: type in types)

    def _on_lost(self, wire: Wire) -> None:
        """The connection is lost, perhaps with jobs in transit."""
        if wire is not self._wire:
            return
        self._wire = None
        lost = list(self._tokens)
        self._tokens.clear()
        self._receivers.clear()
        self._wake_all()
        if not self._is_closed:
            for receiver in lost:
                receiver.lost()

    def _void_marks(self) -> None:
        """Count a wake-up for every type: any of them may have been missed while nothing was listening."""
        self.received += 1
        self._all_received_at = self.received

    def _wake_all(self) -> None:
        self._void_marks()
        self._watches.wake()
