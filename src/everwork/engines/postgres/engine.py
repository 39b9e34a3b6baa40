"""The PostgreSQL engine: the contract's calls, each one statement on one of a few connections."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping, Sequence

from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats, TypeInfo
from everwork.core.retention import KEEP_MS
from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.postgres import change, move, own_transaction, read, registry
from everwork.engines.postgres.create import create_document, created_of
from everwork.engines.postgres.opened import OpenStore, opened, stored_schema
from everwork.engines.postgres.registry import fire, trigger_marks
from everwork.engines.postgres.settle import activate, check, extend, settle
from everwork.engines.postgres.store_url import StoreUrl
from everwork.engines.postgres.sweep import sweep
from everwork.engines.postgres.wake import POLL_ONLY_MS, Wakeup
from everwork.engines.values import Durability, Fire, Fired, Health, JobRecord, Registered, Schema, Swept, TriggerMarks
from everwork.exceptions import EngineUnavailable

FOR_WORK, FOR_RESULTS = "#idle", "#waiter"
"""What the registry says of a process that waits: whom nobody waits for need not be told anything."""
WAITER_MS = 30_000


class PostgresEngine(Engine):
    """Jobs in one schema of a PostgreSQL database, shared by any number of hosts."""

    def __init__(self, address: StoreUrl, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock
        self._opened: OpenStore | None = None
        self._name = uuid.uuid4().hex

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> PostgresEngine:
        """The engine of a `postgresql:` URL."""
        return cls(StoreUrl.from_url(url), clock)

    async def open(self, *, create: bool = True) -> None:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = await opened(self._address, self._clock, create=create)

    async def schema(self) -> Schema:
        return await stored_schema(self._address)

    async def close(self) -> None:
        parts, self._opened = self._opened, None
        if parts is not None and parts.pid == os.getpid():
            await parts.close()

    @property
    def _parts(self) -> OpenStore:
        if self._opened is None or self._opened.pid != os.getpid():
            raise EngineUnavailable(f"cannot use {self._address.shown}: the engine is not open in this process")
        return self._opened

    def fresh(self) -> PostgresEngine:
        return PostgresEngine(self._address, self._clock)

    @property
    def durability(self) -> Durability:
        settings = self._opened.settings if self._opened is not None else {}
        if settings.get("synchronous_commit", "on") == "off" or settings.get("fsync", "on") == "off":
            # A server that is killed loses at most what was not written, which without fsync is nothing.
            return Durability.PROCESS_CRASH if settings.get("synchronous_commit") != "off" else Durability.NONE
        return Durability.POWER_LOSS

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def retention(self) -> Mapping[State, int]:
        return KEEP_MS

    async def health(self) -> Health:
        parts = self._parts
        await parts.connections.look("SELECT 1")
        wakes = "notify" if self._address.notify else "poll"
        details = {"schema": self._address.schema, "wake-ups": wakes, **parts.settings}
        return Health("postgres", parts.server_version, parts.schema_version, self.durability, details)

    async def now(self) -> int:
        parts = self._parts
        [row] = await parts.connections.look(parts.sql("now")["now"], parts.now_ms())
        return int(row[0])

    # Hot path -----------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        if not jobs:
            return []
        parts = self._parts
        document = create_document(jobs, parts.now_ms())
        [row] = await parts.connections.rows(parts.sql("create")["create"], document)
        parts.notifier.tell_work({job.type for job in jobs}, everybody=row[2])
        return created_of(row[0], row[1])

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        return await own_transaction.create_in(self._place, transaction, jobs)

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        return await own_transaction.complete_in(self._place, transaction, completions)

    @property
    def _place(self) -> own_transaction.TransactionContext:
        store_id = self._opened.store_id if self._opened is not None else None
        return own_transaction.TransactionContext(self._address, store_id, self._clock)

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        return await activate(self._parts, demands)

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if not outcomes:
            return Settlement([], await self.activate(demands))
        return await settle(self._parts, outcomes, demands)

    async def extend(self, leases_held: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        return await extend(self._parts, leases_held, lease_ms)

    async def check(self, leases_held: Sequence[Lease]) -> list[LeaseStatus]:
        return await check(self._parts, leases_held)

    def mark(self) -> int:
        return self._parts.work.rings

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        parts = self._parts
        if await self._is_new(parts, FOR_WORK):
            return True  # What became ready a moment ago was not told: the caller looks again.
        return await self._rung(parts.work, types, timeout_ms, since)

    def mark_finished(self) -> int:
        return self._parts.done.rings

    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        parts = self._parts
        if await self._is_new(parts, FOR_RESULTS):
            return True
        return await self._rung(parts.done, (), timeout_ms, since)

    async def _rung(self, bell: Wakeup, types: Sequence[str], timeout_ms: int, since: int | None) -> bool:
        """Wait for a bell; where other processes cannot ring it, the caller is sent to look every now and then."""
        patience_ms = timeout_ms if self._address.notify else min(timeout_ms, POLL_ONLY_MS)
        return await bell.wait(types, patience_ms, since) or patience_ms < timeout_ms

    async def _is_new(self, parts: OpenStore, what: str) -> bool:
        """Let everybody know that this process waits, and listen; whether they did not know it before."""
        if not self._address.notify:
            return False
        now = asyncio.get_running_loop().time() * 1000
        known_until = parts.waits_until.get(what, 0.0)
        if now < known_until - WAITER_MS / 2:
            return False
        await parts.listener.begin()
        await registry.register(parts, what, self._name, "", WAITER_MS)
        parts.waits_until[what] = now + WAITER_MS
        return now >= known_until

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        return await change.cancel(self._parts, keys, reason)

    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        return await change.requeue(self._parts, keys)

    async def set_retries(self, key: int, retries: int) -> Judged:
        return await change.set_retries(self._parts, key, retries)

    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        return await change.reschedule(self._parts, keys, run_at_ms, delay_ms)

    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        return await change.set_priority(self._parts, keys, priority)

    async def delete(self, keys: Sequence[int]) -> list[Judged]:
        return await change.delete(self._parts, keys)

    # Questions ----------------------------------------------------------------------------------

    async def get(self, keys: Sequence[int]) -> list[Job | None]:
        return await read.get(self._parts, keys)

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        return await read.owners(self._parts, keys)

    async def history(self, key: int) -> list[HistoryEntry]:
        return (await read.histories(self._parts, [key])).get(key, [])

    async def count(self) -> list[Count]:
        return await read.count(self._parts)

    async def stats(self, hours: int) -> Stats:
        return await read.stats(self._parts, hours)

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        return await read.measures(self._parts, hours, type)

    async def oldest(self) -> list[Oldest]:
        return await read.oldest(self._parts)

    async def explain(self, key: int) -> Explanation | None:
        return await read.explain(self._parts, key)

    # Upkeep -------------------------------------------------------------------------------------

    async def sweep(self, holder: str) -> Swept:
        return await sweep(self._parts, holder)

    # Moving to another store ----------------------------------------------------------------------

    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        return await move.dump(self._parts, after, limit)

    async def load(self, records: Sequence[JobRecord]) -> int:
        return await move.load(self._parts, records)

    # Registry -----------------------------------------------------------------------------------

    async def pause(self, type: str, paused: bool) -> None:
        await registry.pause(self._parts, type, paused)

    async def open_breaker(self, type: str, open_ms: int) -> None:
        await registry.open_breaker(self._parts, type, open_ms)

    async def reset_breaker(self, type: str) -> bool:
        return await registry.reset_breaker(self._parts, type)

    async def set_policy(self, type: str, policy: str | None) -> None:
        await registry.set_policy(self._parts, type, policy)

    async def add_group(self, type: str, group: str) -> None:
        await registry.add_group(self._parts, type, group)

    async def drop_group(self, type: str, group: str) -> int:
        return await registry.drop_group(self._parts, type, group)

    async def types(self) -> list[TypeInfo]:
        return await registry.types(self._parts)

    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        await registry.register(self._parts, kind, name, body, ttl_ms)

    async def unregister(self, kind: str, name: str) -> bool:
        return await registry.unregister(self._parts, kind, name)

    async def registered(self, kind: str | None) -> list[Registered]:
        return await registry.registered(self._parts, kind)

    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        return await registry.last_registered(self._parts, kind, limit, below)

    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        return await registry.take_turn(self._parts, name, holder, ttl_ms)

    async def subscribe(self, type: str, worker: str) -> str:
        return await registry.subscribe(self._parts, type, worker)

    # Triggers -----------------------------------------------------------------------------------

    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        return await trigger_marks(self._parts, triggers)

    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        return await fire(self._parts, fires)

    async def find(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        return await read.find(self._parts, wanted, limit, cursor)
