"""The open inbox: `XADD <type> * payload <JSON>` from any program becomes a job of that type, once.

A stream has a plain key, which on a cluster is in a different slot than the namespace, so this is a loop and not a
script. The loop reads entries, creates jobs with the entry's id as dedupe key, then acknowledges and deletes the
entries. A process that dies in between leaves an entry that another process claims; if its job already exists, no
second one is created.

The inbox uses redis-py, because streams may be on any node of a cluster and blocking reads need their own
connections, which redis-py routes and pools. The engine's scripts use a separate client (see wire.py), because they
need neither, and with redis-py each call would cost several times as much.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from everwork.codec.json import decode_object, encode_object
from everwork.core import checks
from everwork.core.instants import instant_ms
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.limits import DELAY_MS_MAX, HEADERS_BYTES_MAX, INSTANT_MS_MAX, PAYLOAD_BYTES_MAX
from everwork.engines.redis.connection import CONNECT_SECONDS, Connection
from everwork.engines.redis.records import create_args
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.wire import SILENCE_SECONDS
from everwork.exceptions import EngineError, InvalidInput
from everwork.logs import Outage, get_logger

log = get_logger("everwork.redis")

GROUP: Final = "everwork"
CHECK_SECONDS: Final = 0.5
"""How often to look for new streams of the demanded types."""
FORGET_SECONDS: Final = 600.0
"""Streams of types that no demand has named for this long, or up to twice as long, are no longer looked up."""
BLOCK_MS: Final = 1_000
CLAIM_SECONDS: Final = 10.0
IDLE_MS: Final = 30_000
"""An entry that its reader has not finished for this long is claimed by another reader."""
FORGET_MS: Final = 86_400_000
ENTRIES_MAX: Final = 500
ENTRIES_FIRST: Final = 16
"""How many entries to read while their size is unknown."""
ASIDE_MAX: Final = 10_000
RETRY_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 2.0

ALL: Final = "every type"
"""The source of an outage that affects the search for streams itself."""

Entry = tuple[bytes, dict[bytes, bytes] | None]


class Inbox:
    """Finds the streams of the types that this process's workers demand, and reads them."""

    def __init__(self, connection: Connection, *, idle_ms: int = IDLE_MS, reads: bool = True) -> None:
        self.types: set[str] = set()
        """The types of recent demands."""
        self._older: set[str] = set()
        self._renewed_at = float("-inf")
        self._connection = connection
        self._idle_ms = idle_ms
        self._reads = reads
        self._foreign: set[str] = set()
        self._outages: dict[str, Outage] = {}
        self._batch_size = ENTRIES_FIRST
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._finder: asyncio.Task[None] | None = None
        self._client: Any = None
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def watch(self, demands: Sequence[Demand]) -> None:
        """Find and read streams of these types from now on.

        A type can have the name of any stream on the server, so keys that are restricted to tenants do not start this.
        """
        for demand in demands:
            if demand.type not in self.types and not demand.is_bound:
                self.types.add(demand.type)
                if self._finder is None:
                    self._finder = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop reading; entries that were read but not acknowledged are left for other processes."""
        tasks = [*self._readers.values(), *([self._finder] if self._finder else [])]
        while tasks:
            for task in tasks:
                task.cancel()
            # The driver can mistake a cancellation for its own timeout; then it is cancelled again.
            tasks = list((await asyncio.wait(tasks, timeout=CLOSE_SECONDS))[1])
        if self._client is not None:
            with suppress(RedisError, OSError, TimeoutError, RuntimeError):
                await asyncio.wait_for(self._remove_consumers(), CLOSE_SECONDS)
            await self._client.aclose()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.find_streams()

    async def find_streams(self) -> None:
        """Start reading new streams."""
        if self._client is None:
            self._client = client_of(self._connection.url)
        self._forget_types()
        types = sorted(self.types | self._older)
        unread = [type for type in types if type not in self._readers or self._readers[type].done()]
        if unread:
            await self._try(ALL, self._find(unread))

    def _forget_types(self) -> None:
        """Do not look for streams of types that no demand has named for a while; streams that are read stay."""
        now = asyncio.get_running_loop().time()
        if now - self._renewed_at >= FORGET_SECONDS:
            self._renewed_at = now
            self._older, self.types = self.types, set()
            known = self._older | self._readers.keys()
            self._foreign &= known
            self._outages = {name: one for name, one in self._outages.items() if name in known or name == ALL}

    async def _find(self, types: Sequence[str]) -> None:
        for type, key_type in zip(types, await self._key_types(types), strict=True):
            if isinstance(key_type, Exception):  # This key cannot be read; others may be readable.
                self._outage(type).report(key_type)
            else:
                self._start_reader(type, key_type)

    async def _key_types(self, types: Sequence[str]) -> list[Any]:
        """The Redis types of the keys named after these job types; on a cluster, the keys may be on any node."""
        if not self._connection.url.is_cluster:
            return await self._connection.key_types(types)
        found: list[Any] = []
        for type in types:
            try:
                found.append(await self._client.type(type))
            except ResponseError as error:
                found.append(error)
        return found

    def _start_reader(self, type: str, key_type: bytes) -> None:
        if key_type == b"stream" and self._reads:
            self._readers[type] = asyncio.get_running_loop().create_task(self._read(type))
        elif key_type not in (b"none", b"stream") and type not in self._foreign:
            self._foreign.add(type)
            log.warning("a key with this type's name exists but is not a stream, ignoring it", type=type)

    async def _read(self, source: str) -> None:
        loop = asyncio.get_running_loop()
        claimed_at = -CLAIM_SECONDS
        while True:
            if loop.time() - claimed_at >= CLAIM_SECONDS:
                claimed_at = loop.time()
                entries = await self._try(source, self.claim_abandoned(source))
            else:
                entries = await self._try(source, self.read_new(source))
            if entries is None:
                return  # The stream or the server no longer exists; the search continues.
            await self.take(source, entries)

    async def _try(self, source: str, action: Coroutine[Any, Any, Any]) -> Any:
        """The result of an action; None if the server is unavailable or the stream no longer exists."""
        try:
            result = await action
        except (RedisError, OSError, EngineError, RuntimeError) as error:
            # uvloop raises RuntimeError when the driver writes to a connection that has just been closed.
            if not str(error).startswith("NOGROUP"):
                self._outage(source).report(error)
            return None
        self._outage(source).over()
        return result

    def _outage(self, source: str) -> Outage:
        if source not in self._outages:
            outage_event, recovery_event = "the inbox cannot be read, trying again", "the inbox can be read again"
            self._outages[source] = Outage(log, outage_event, recovery_event, source=source)
        return self._outages[source]

    async def read_new(self, source: str, block_ms: int | None = BLOCK_MS) -> list[Entry]:
        """Entries that no consumer has read yet."""
        reply = await self._client.xreadgroup(
            GROUP, self.consumer, {source: ">"}, count=self._batch_size, block=block_ms
        )
        if not reply:
            return []
        return self._measured(next(iter(reply.values()))[0] if isinstance(reply, dict) else reply[0][1])

    async def claim_abandoned(self, source: str) -> list[Entry]:
        """Entries that another consumer has read and not finished; also creates the group if there is none."""
        try:
            await self._client.xgroup_create(source, GROUP, id="0")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        _, entries, *_ = await self._client.xautoclaim(
            source, GROUP, self.consumer, self._idle_ms, "0-0", count=self._batch_size
        )
        await self._remove_dead_consumers(source)
        return self._measured(entries)

    def _measured(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries; their size decides how many are read next time."""
        size = sum(len(value) for _, fields in entries for value in (fields or {}).values())
        if entries:
            self._batch_size = max(1, min(ENTRIES_MAX, BATCH_BYTES_MAX * len(entries) // max(size, 1)))
        return list(entries)

    async def take(self, source: str, entries: Sequence[Entry]) -> None:
        """Create jobs from entries and delete the entries; an invalid entry is set aside with its error."""
        jobs: list[NewJob] = []
        for entry_id, fields in entries:
            if fields is None:
                continue  # The entry was deleted while a consumer had it.
            try:
                jobs.append(job_of_entry(source, entry_id.decode(), fields))
            except InvalidInput as error:
                await self._repeat(source, partial(self._set_aside, source, entry_id, fields, error))
        await self.create(source, jobs)
        ids = [entry_id for entry_id, _ in entries]
        if ids:
            await self._repeat(source, lambda: self._client.xack(source, GROUP, *ids))
            await self._repeat(source, lambda: self._client.xdel(source, *ids))

    async def create(self, source: str, jobs: Sequence[NewJob]) -> None:
        """Create jobs; repeated until it succeeds."""
        for batch in batches(jobs):
            await self._repeat(source, partial(self._connection.run, "create", create_args(batch)))

    async def _repeat(self, source: str, action: Callable[[], Awaitable[Any]]) -> None:
        """Repeat an idempotent action until it succeeds; until then, the entries are kept here."""
        while True:
            try:
                await action()
            except (RedisError, OSError, EngineError, RuntimeError) as error:
                self._outage(source).report(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._outage(source).over()
                return

    async def _set_aside(self, source: str, entry_id: bytes, fields: dict[bytes, bytes], problem: InvalidInput) -> None:
        payload = fields.get(b"payload")
        content = {"payload": payload} if payload is not None else {"fields": repr(fields)[:10_000]}
        kept = {"entry": entry_id, "error": str(problem), **content}
        aside = f"{source}:aside"
        try:
            await self._client.xadd(aside, kept, maxlen=ASIDE_MAX, approximate=True)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            aside = f"{aside}:everwork"  # The name is used for something else.
            await self._client.xadd(aside, kept, maxlen=ASIDE_MAX, approximate=True)
        log.warning("an entry was set aside", stream=source, entry=entry_id.decode(), into=aside, error=str(problem))

    async def _remove_dead_consumers(self, source: str) -> None:
        for consumer in await self._client.xinfo_consumers(source, GROUP):
            if consumer["pending"] == 0 and consumer["idle"] > FORGET_MS:
                await self._client.xgroup_delconsumer(source, GROUP, consumer["name"])

    async def _remove_consumers(self) -> None:
        """Delete our consumer from groups where it has no pending entries: those would be lost with it."""
        for source in self._readers:
            pending = await self._client.xpending_range(source, GROUP, "-", "+", 1, self.consumer)
            if not pending:
                await self._client.xgroup_delconsumer(source, GROUP, self.consumer)


BATCH_BYTES_MAX: Final = 8_000_000
"""The approximate size of the batches in which entries are read and jobs created."""


def batches(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs in their order, in batches of a bounded size; a larger job gets its own batch."""
    batch: list[NewJob] = []
    taken = 0
    for job in jobs:
        size = len(job.variables) + len(job.headers or "")
        if batch and taken + size > BATCH_BYTES_MAX:
            yield batch
            batch, taken = [], 0
        batch.append(job)
        taken += size
    if batch:
        yield batch


def job_of_entry(type: str, entry_id: str, fields: Mapping[bytes, bytes]) -> NewJob:
    """The job of an entry; raises `InvalidInput` if the entry is not valid."""
    payload = fields.get(b"payload")
    if payload is None:
        raise InvalidInput("payload", 'is missing; write XADD <type> * payload {"kwargs": {...}}')
    given = decode_object("payload", payload, PAYLOAD_BYTES_MAX + HEADERS_BYTES_MAX)
    if "kwargs" not in given:
        raise InvalidInput("kwargs", "is missing in the payload; it must be a JSON object")
    headers = given.get("headers")
    if given.get("delay") is not None and given.get("run_at") is not None:
        raise InvalidInput("delay", "cannot be combined with run_at")
    return NewJob(
        type,
        encode_object("kwargs", given["kwargs"], PAYLOAD_BYTES_MAX),
        dedupe_key=f"inbox:{entry_id}",
        headers=None if headers is None else encode_object("headers", headers, HEADERS_BYTES_MAX),
        delay_ms=checks.milliseconds("delay", given.get("delay") or 0, 0, DELAY_MS_MAX / 1000),
        run_at_ms=_instant_ms("run_at", given.get("run_at")),
        expires_at_ms=_instant_ms("expires", given.get("expires")),
    )


def _instant_ms(field: str, value: Any) -> int | None:
    """An instant, from ISO 8601 with a time zone or from seconds since 1970."""
    if value is None:
        return None
    if not isinstance(value, str):
        return checks.milliseconds(field, value, 0, INSTANT_MS_MAX / 1000)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(field, f"must be a time in ISO 8601 format, not {checks.shown(value)}") from None
    if moment.tzinfo is None:
        raise InvalidInput(field, f"must have a time zone, such as 2030-01-31T12:00:00Z, not {checks.shown(value)}")
    return checks.whole_number(field, instant_ms(moment), 0, INSTANT_MS_MAX)


def client_of(url: StoreUrl) -> Any:
    """A redis-py client for the server or cluster of a store; it connects when it is used."""
    settings: dict[str, Any] = {
        "username": url.username, "password": url.password, "protocol": 3,
        "socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": SILENCE_SECONDS,
    }  # fmt: skip
    if url.tls is not None:
        settings |= {"ssl": True, **url.tls}
    if url.is_cluster:
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in url.hosts], **settings)
    # One retry for a connection that was dropped while idle; callers do their own retries.
    settings["retry"] = Retry(NoBackoff(), 1)
    if url.socket_path is not None:
        return Redis(unix_socket_path=url.socket_path, db=url.db, **settings)
    [(host, port)] = url.hosts
    return Redis(host=host, port=port, db=url.db, **settings)
