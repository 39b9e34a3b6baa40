"""The hot path of the engine: create, activate and settle, leases, and waiting for work or results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import asyncpg

from everwork.aio.wakeup import Wake, Watch
from everwork.core.job import NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement, Stamp
from everwork.core.limits import TYPES_MAX
from everwork.core.outcome import Outcome
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.postgres.create import create_document, created_of, plain_values
from everwork.engines.postgres.opened import OpenStore, PostgresBase
from everwork.engines.postgres.settle import rounds_of, run_step, settle_distinct
from everwork.engines.postgres.wake import POLL_ONLY_MS, Wakeup, channel
from everwork.engines.rules import AUTOMATIC_REQUEUE, outdated
from everwork.exceptions import EngineError

FOR_WORK, FOR_RESULTS = "#idle", "#waiter"
"""The kinds of the registry entries of a waiting process: without one, no notification is sent."""
WAITER_MS: Final = 30_000
GENERAL_SECONDS: Final = 10.0
"""How long `create_jobs` creates the single jobs of a type after `create_one` has declined one."""


class PostgresJobs(PostgresBase, JobFlow):
    """The calls of producers and workers."""

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        if not jobs:
            return []
        store = self._store
        if len(jobs) == 1 and stamp is None and (values := plain_values(jobs[0])) is not None:
            key = await self._create_one(store, jobs[0].type, values)
            if key:
                return [Created(key)]
        document = create_document(jobs, store.now_ms(), stamp)
        try:
            [(new_keys, keys, is_awaited)] = await store.connections.fetch(store.sql("create")["create"], document)
        except EngineError as error:
            if stamp is None or not isinstance(error.__cause__, asyncpg.RaiseError):
                raise
            return await _repeated(store, stamp)
        store.notifier.notify_work({job.type for job in jobs}, elsewhere=is_awaited)
        return created_of(new_keys, keys)

    async def _create_one(self, store: OpenStore, type: str, values: Sequence[Any]) -> int | None:
        """Create a plain job; returns no key if `create_jobs` must be used, perhaps for other jobs of its type, too."""
        now = asyncio.get_running_loop().time()
        if store.general_until.get(type, now) > now:
            return None
        sql, address = store.sql("create")["create_one"], channel(self._url) if self._url.notify else None
        key: int | None
        try:
            [(key, is_awaited, is_handed)] = await store.connections.fetch(sql, store.now_ms(), *values, address)
        except EngineError as error:
            # The server's notification queue is full: this may only delay wake-ups, not fail the create.
            if not isinstance(error.__cause__, asyncpg.ProgramLimitExceededError):
                raise
            key = is_awaited = is_handed = None
        if key is None:
            if len(store.general_until) >= TYPES_MAX:
                store.general_until.clear()
            store.general_until[type] = now + GENERAL_SECONDS
        elif key and not is_handed:
            store.notifier.notify_work((type,), elsewhere=is_awaited)
        return key

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        return (await run_step(self._store, {}, demands)).activation

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        """Outcomes of the same job are settled one after the other."""
        if not outcomes:
            return Settlement([], await self.activate(demands))
        if len({outcome.key for outcome in outcomes}) == len(outcomes):
            return Settlement(*await settle_distinct(self._store, outcomes, demands))
        judged: dict[int, Judged] = {}
        for indexes in rounds_of(outcomes):
            answers, _ = await settle_distinct(self._store, [outcomes[index] for index in indexes], ())
            judged.update(zip(indexes, answers, strict=True))
        return Settlement([judged[index] for index in range(len(outcomes))], await self.activate(demands))

    async def unpark(self, worker: str, types: Sequence[str]) -> None:
        if types and self._url.notify:
            await self._store.connections.fetch(self._store.sql("activate")["unpark"], worker, types)

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        store = self._store
        sql = store.sql("extend")
        ordered = sorted(set(leases))
        held = await _extended(store, sql["extend"], ordered, lease_ms)
        late = [lease for lease in ordered if lease not in held]
        if late:
            locked = await _extended(store, sql["extend_locked"], late, lease_ms)
            if locked:
                # Some leases are held but were not extended, because their rows were locked; the rows may be free now.
                await _extended(store, sql["extend"], sorted(lease for lease in late if lease in locked), lease_ms)
            held |= locked
        return await _statuses(store, leases, held)

    async def reclaim(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        store, ordered = self._store, sorted(set(leases))
        keys, attempts = [lease.key for lease in ordered], [lease.attempt for lease in ordered]
        sql = store.sql("reclaim")["reclaim"]
        await store.connections.fetch(sql, keys, attempts, lease_ms, store.now_ms(), AUTOMATIC_REQUEUE)
        return await self.extend(leases, lease_ms)

    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        store = self._store
        rows = await store.connections.read(store.sql("check")["held"], sorted({lease.key for lease in leases}))
        return await _statuses(store, leases, {tuple(row) for row in rows})

    def mark(self) -> int:
        return self._store.work.count

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        store = self._store
        if await self._announce(store, FOR_WORK):
            return True  # No notification was sent for jobs that became ready just before: the caller activates again.
        return await self._wait(store.work, types, timeout_ms, since)

    def watch(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
        store = self._store
        if self._url.notify and not _is_announced(store, FOR_WORK):
            return super().watch(types, timeout_ms, since, wake)
        return store.work.watch(types, self._patience_ms(timeout_ms), since, wake)

    def mark_finished(self) -> int:
        return self._store.finished.count

    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        store = self._store
        if await self._announce(store, FOR_RESULTS):
            return True
        return await self._wait(store.finished, (), timeout_ms, since)

    async def _wait(self, wakeup: Wakeup, types: Sequence[str], timeout_ms: int, since: int | None) -> bool:
        """Wait for a wake-up; if other processes cannot send any, the caller polls."""
        patience_ms = self._patience_ms(timeout_ms)
        return await wakeup.wait(types, patience_ms, since) or patience_ms < timeout_ms

    def _patience_ms(self, timeout_ms: int) -> int:
        return timeout_ms if self._url.notify else min(timeout_ms, POLL_ONLY_MS)

    async def _announce(self, store: OpenStore, kind: str) -> bool:
        """Register that this process is waiting, and listen; return whether the registration is new."""
        if not self._url.notify or _is_announced(store, kind):
            return False
        clock_ms, known_until = _clock_ms(), store.waits_until.get(kind, 0.0)
        await store.listener.start()
        sql = store.sql("registry")["register"]
        await store.connections.fetch(sql, kind, self._waiter_id, "", WAITER_MS, store.now_ms())
        store.waits_until[kind] = clock_ms + WAITER_MS
        return clock_ms >= known_until


def _is_announced(store: OpenStore, kind: str) -> bool:
    """Whether this process is registered as waiting, and the entry does not expire soon."""
    return _clock_ms() < store.waits_until.get(kind, 0.0) - WAITER_MS / 2


def _clock_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


async def _repeated(store: OpenStore, stamp: Stamp) -> list[Created]:
    """What the call with this stamp returned."""
    [(number, keys)] = await store.connections.read(store.sql("create")["repeated"], stamp.producer)
    if number > stamp.number:
        raise outdated(stamp)
    return [Created(abs(key), key < 0) for key in keys]


async def _extended(store: OpenStore, sql: str, leases: Sequence[Lease], lease_ms: int) -> set[tuple[int, int]]:
    keys, attempts = [lease.key for lease in leases], [lease.attempt for lease in leases]
    return {tuple(row) for row in await store.connections.fetch(sql, keys, attempts, lease_ms, store.now_ms())}


async def _statuses(store: OpenStore, leases: Sequence[Lease], held: set[tuple[int, int]]) -> list[LeaseStatus]:
    lost_keys = sorted({lease.key for lease in leases if lease not in held})
    cancelled: set[tuple[int, int]] = set()
    if lost_keys:
        rows = await store.connections.read(store.sql("check")["cancelled"], lost_keys)
        cancelled = {tuple(row) for row in rows}
    return [
        LeaseStatus.HELD if lease in held else LeaseStatus.CANCELLED if lease in cancelled else LeaseStatus.LOST
        for lease in leases
    ]
