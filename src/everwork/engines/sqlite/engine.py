"""The SQLite engine: the contract's calls, each handed to the thread that owns the connection."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import partial

from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats, TypeInfo
from everwork.core.retention import KEEP_MS
from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.portions import portions
from everwork.engines.sqlite import capacity, change, move, read, registry
from everwork.engines.sqlite.activate import activate, nothing_to_do
from everwork.engines.sqlite.connections import in_daemon
from everwork.engines.sqlite.create import create
from everwork.engines.sqlite.migrate import migrate, migrations, stored_version
from everwork.engines.sqlite.opened import OpenStore
from everwork.engines.sqlite.own_transaction import complete_in, create_in
from everwork.engines.sqlite.processes import FileLock
from everwork.engines.sqlite.read import oldest
from everwork.engines.sqlite.registry import begun_marks, fire, known_marks
from everwork.engines.sqlite.settle import check, extend, settle
from everwork.engines.sqlite.store_url import StoreUrl, check_place, connect, require_jobs
from everwork.engines.sqlite.sweep import has_lapsed, look, look_at_counts, sweep_finished, sweep_lapsed
from everwork.engines.sqlite.transaction import Transaction
from everwork.engines.sqlite.writer import LoopWriter, ThreadWriter
from everwork.engines.values import Durability, Fire, Fired, Health, JobRecord, Registered, Schema, Swept, TriggerMarks
from everwork.exceptions import EngineUnavailable

SWEEP_TURN = "sweep"
SWEEP_TURN_MS = 5_000


def host_clock_ms() -> int:
    """The host's clock."""
    return time.time_ns() // 1_000_000


class SqliteEngine(Engine):
    """Jobs in one SQLite file, shared by any number of processes of one machine."""

    def __init__(self, place: StoreUrl, clock: Clock | None = None, *, own_loop: bool = False) -> None:
        self._place = place
        self._own_loop = own_loop
        self._clock = clock or host_clock_ms
        self._opened: OpenStore | None = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, own_loop: bool = False) -> SqliteEngine:
        """The engine of a `sqlite:` URL."""
        return cls(StoreUrl.from_url(url), clock, own_loop=own_loop)

    async def open(self, *, create: bool = True) -> None:
        if self._opened is None or self._opened.pid != os.getpid():
            connection, lock, schema_version = await in_daemon(lambda: self._connect(create))
            make = LoopWriter if self._own_loop else ThreadWriter
            writer = make(self._place, connection, lock, self._clock)
            self._opened = OpenStore(self._place, self._clock, writer, lock, schema_version)

    def _connect(self, create: bool) -> tuple[sqlite3.Connection, FileLock, int]:
        check_place(self._place)
        if not create:
            require_jobs(self._place)
        lock = FileLock(None if self._place.in_memory else self._place.path)
        try:
            with lock:
                connection = connect(self._place)
                try:
                    return connection, lock, migrate(connection, self._place.path)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            lock.close()
            raise

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None and opened.pid == os.getpid():
            await opened.close()

    @property
    def _parts(self) -> OpenStore:
        if self._opened is None or self._opened.pid != os.getpid():
            raise EngineUnavailable(f"cannot use {self._place.path}: the engine is not open in this process")
        return self._opened

    def fresh(self) -> SqliteEngine:
        return SqliteEngine(self._place, self._clock, own_loop=self._own_loop)

    @property
    def durability(self) -> Durability:
        if self._place.in_memory:
            return Durability.NONE
        return Durability.POWER_LOSS if self._place.synchronous == "FULL" else Durability.PROCESS_CRASH

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def retention(self) -> Mapping[State, int]:
        return KEEP_MS

    async def health(self) -> Health:
        mode = await self._parts.ask(lambda cursor, _: cursor.execute("PRAGMA journal_mode").fetchone()[0])
        details = {"path": self._place.path, "journal_mode": mode, "synchronous": self._place.synchronous}
        return Health("sqlite", sqlite3.sqlite_version, self._parts.schema_version, self.durability, details)

    async def schema(self) -> Schema:
        return Schema(await asyncio.to_thread(stored_version, self._place), max(migrations()))

    async def now(self) -> int:
        return await self._parts.ask(lambda _, now_ms: now_ms)

    # Hot path -----------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        return await self._parts.writer.submit(lambda tx: create(tx, jobs))

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        return create_in(self._place, transaction, jobs, self._clock())

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        return complete_in(self._place, transaction, completions, self._clock())

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        return await self._parts.writer.submit(
            lambda tx: activate(tx, demands), lambda cursor, now_ms: nothing_to_do(cursor, demands, now_ms)
        )

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if not outcomes:
            return Settlement([], await self.activate(demands))

        def act(tx: Transaction) -> Settlement:
            judged = settle(tx, outcomes)
            return Settlement(judged, activate(tx, demands) if demands else Activation([], None, tx.now_ms, ()))

        return await self._parts.writer.submit(act)

    async def extend(self, leases_held: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        return await self._parts.writer.submit(lambda tx: extend(tx, leases_held, lease_ms))

    async def check(self, leases_held: Sequence[Lease]) -> list[LeaseStatus]:
        return await self._parts.ask(lambda cursor, _: check(cursor, leases_held))

    def mark(self) -> int:
        return self._parts.work.rings

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:  # noqa: ARG002
        # A bell rings for every type: looking without a lock is cheaper than sorting the rings.
        self._parts.poll()
        return await self._parts.work.wait(timeout_ms, since)

    def mark_finished(self) -> int:
        return self._parts.done.rings

    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        self._parts.poll()
        return await self._parts.done.wait(timeout_ms, since)

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        return await self._parts.writer.submit(lambda tx: change.cancel(tx, keys, reason))

    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        return await self._parts.writer.submit(lambda tx: change.requeue(tx, keys))

    async def set_retries(self, key: int, retries: int) -> Judged:
        return await self._parts.writer.submit(lambda tx: change.set_retries(tx, key, retries))

    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        return await self._parts.writer.submit(lambda tx: change.reschedule(tx, keys, run_at_ms, delay_ms))

    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        return await self._parts.writer.submit(lambda tx: change.set_priority(tx, keys, priority))

    async def delete(self, keys: Sequence[int]) -> list[Judged]:
        return await self._parts.writer.submit(lambda tx: change.delete(tx, keys))

    # Questions ----------------------------------------------------------------------------------

    async def get(self, keys: Sequence[int]) -> list[Job | None]:
        return await self._parts.ask(lambda cursor, _: read.get(cursor, keys))

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        return await self._parts.ask(lambda cursor, _: read.owners(cursor, keys))

    async def history(self, key: int) -> list[HistoryEntry]:
        return await self._parts.ask(lambda cursor, _: read.history(cursor, key))

    async def count(self) -> list[Count]:
        return await self._parts.ask(lambda cursor, _: read.count(cursor))

    async def stats(self, hours: int) -> Stats:
        return await self._parts.ask(lambda cursor, now_ms: read.stats(cursor, hours, now_ms))

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        found: list[Measure] = []
        for some in portions(hours, await self._parts.ask(lambda _, now_ms: now_ms)):
            found += await self._parts.ask(partial(read.measures, some, type))
        return found

    async def oldest(self) -> list[Oldest]:
        return await self._parts.ask(oldest)

    async def explain(self, key: int) -> Explanation | None:
        return await self._parts.ask(lambda cursor, now_ms: read.explain(cursor, key, now_ms))

    # Upkeep -------------------------------------------------------------------------------------

    async def sweep(self, holder: str) -> Swept:
        parts = self._parts

        def is_idle(cursor: sqlite3.Cursor, now_ms: int) -> Swept | None:
            left_ms = registry.turn_left_ms(cursor, SWEEP_TURN, holder, now_ms)
            is_mine = left_ms >= 0
            is_wrong = is_mine and look_at_counts(cursor, parts.broom, now_ms, took_over=left_ms == 0)
            if is_wrong or has_lapsed(cursor, now_ms):
                return None
            must_act = is_mine and (left_ms < SWEEP_TURN_MS // 2 or look(cursor, parts.broom, now_ms))
            return None if must_act else Swept()

        def act(tx: Transaction) -> Swept:
            swept = sweep_lapsed(tx)
            if not registry.take_turn(tx, SWEEP_TURN, holder, SWEEP_TURN_MS):
                return swept
            return sweep_finished(tx, parts.broom, swept)

        swept = await parts.writer.submit(act, is_idle)
        await parts.writer.ask(lambda *_: parts.writer.truncate_wal())
        return swept

    # Moving to another store ----------------------------------------------------------------------

    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        return await self._parts.ask(lambda cursor, _: move.dump(cursor, after, limit))

    async def load(self, records: Sequence[JobRecord]) -> int:
        return await self._parts.writer.submit(lambda tx: move.load(tx, records))

    # Registry -----------------------------------------------------------------------------------

    async def pause(self, type: str, paused: bool) -> None:
        await self._parts.writer.submit(lambda tx: registry.pause(tx, type, paused))

    async def open_breaker(self, type: str, open_ms: int) -> None:
        await self._parts.writer.submit(lambda tx: capacity.open_breaker(tx, type, open_ms))

    async def reset_breaker(self, type: str) -> bool:
        return await self._parts.writer.submit(lambda tx: capacity.reset_breaker(tx, type))

    async def set_policy(self, type: str, policy: str | None) -> None:
        await self._parts.writer.submit(lambda tx: registry.set_policy(tx, type, policy))

    async def add_group(self, type: str, group: str) -> None:
        await self._parts.writer.submit(lambda tx: registry.add_group(tx, type, group))

    async def drop_group(self, type: str, group: str) -> int:
        return await self._parts.writer.submit(lambda tx: registry.drop_group(tx, type, group))

    async def types(self) -> list[TypeInfo]:
        return await self._parts.ask(registry.types)

    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        await self._parts.writer.submit(lambda tx: registry.register(tx, kind, name, body, ttl_ms))

    async def unregister(self, kind: str, name: str) -> bool:
        return await self._parts.writer.submit(lambda tx: registry.unregister(tx, kind, name))

    async def registered(self, kind: str | None) -> list[Registered]:
        return await self._parts.ask(lambda cursor, now_ms: registry.registered(cursor, kind, now_ms))

    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        return await self._parts.ask(lambda cursor, now: registry.last_registered(cursor, kind, limit, below, now))

    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        return await self._parts.writer.submit(lambda tx: registry.take_turn(tx, name, holder, ttl_ms))

    async def subscribe(self, type: str, worker: str) -> str:
        return await self._parts.writer.submit(lambda tx: registry.subscribe(tx, type, worker))

    # Triggers -----------------------------------------------------------------------------------

    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        known = await self._parts.ask(lambda cursor, now_ms: known_marks(cursor, triggers, now_ms))
        if known is not None:
            return known
        return await self._parts.writer.submit(lambda tx: begun_marks(tx, triggers))

    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        return await self._parts.writer.submit(lambda tx: fire(tx, fires))

    async def find(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        return await self._parts.ask(lambda reader, now_ms: read.find(reader, wanted, (limit, cursor), now_ms))
