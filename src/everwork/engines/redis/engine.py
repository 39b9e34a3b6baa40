"""The Redis engine: the contract's calls, each one script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement, Verdict
from everwork.core.limits import ATTEMPTS_MAX
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats, TypeInfo
from everwork.core.retry import remaining_retries
from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.redis import move, read, registry
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.opened import OpenStore, opened, stored_schema
from everwork.engines.redis.records import LETTERS, activation, created, demand_words, id_of, job_words
from everwork.engines.redis.registry import fire, trigger_marks
from everwork.engines.redis.settle import settle
from everwork.engines.redis.store_url import StoreUrl
from everwork.engines.redis.sweep import KEEP_MS, sweep
from everwork.engines.redis.wake import FINISHED
from everwork.engines.redis.wire import Word
from everwork.engines.values import Durability, Fire, Fired, Health, JobRecord, Registered, Schema, Swept, TriggerMarks
from everwork.exceptions import EngineUnavailable, InvalidInput

_STATUSES = {"h": LeaseStatus.HELD, "c": LeaseStatus.CANCELLED, "l": LeaseStatus.LOST}
_VERDICTS = {"a": Verdict.ACCEPTED, "r": Verdict.REPEATED, "w": Verdict.WRONG_STATE}


class RedisEngine(Engine):
    """Jobs in one namespace of a Redis server or cluster, shared by any number of hosts."""

    def __init__(self, place: StoreUrl, clock: Clock | None = None) -> None:
        self._place = place
        self._clock = clock
        self._opened: OpenStore | None = None

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> RedisEngine:
        """The engine of a `redis:` URL."""
        return cls(StoreUrl.from_url(url), clock)

    async def open(self, *, create: bool = True) -> None:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = await opened(self._place, self._clock, create=create)

    async def close(self) -> None:
        parts, self._opened = self._opened, None
        if parts is not None and parts.pid == os.getpid():
            await parts.close()

    @property
    def _parts(self) -> OpenStore:
        if self._opened is None or self._opened.pid != os.getpid():
            raise EngineUnavailable(f"cannot use Redis at {self._place.text}: the engine is not open in this process")
        return self._opened

    @property
    def _link(self) -> Connection:
        return self._parts.link

    def fresh(self) -> RedisEngine:
        return RedisEngine(self._place, self._clock)

    @property
    def durability(self) -> Durability:
        return self._parts.server.durability

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def retention(self) -> Mapping[State, int]:
        return KEEP_MS

    async def health(self) -> Health:
        parts = self._parts
        await parts.link.read("open", parts.schema_version, 0)
        server = parts.server
        details = {
            "place": self._place.text,
            "namespace": self._place.namespace,
            "server": f"{server.name} {server.version}",
            "maxmemory_policy": server.maxmemory_policy,
            "appendonly": "yes" if server.has_append_only_file else "no",
            "appendfsync": server.appendfsync or "unknown",
        }
        return Health("redis", server.version, parts.schema_version, server.durability, details)

    async def schema(self) -> Schema:
        return await stored_schema(self._place)

    async def now(self) -> int:
        return int(await self._link.read("now"))

    # Hot path -----------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        if not jobs:
            return []
        return created(await self._link.run("create", job_words(jobs)), len(jobs))

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:  # noqa: ARG002
        _refuse(transaction)

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:  # noqa: ARG002
        _refuse(transaction)

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        parts = self._parts
        return self._leased(parts, await parts.link.run("activate", demand_words(demands)), demands)

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if not outcomes:
            return Settlement([], await self.activate(demands))
        parts = self._parts
        judged, reply, now_ms = await settle(parts.link, outcomes, demands)
        if reply is None:
            return Settlement(judged, Activation([], None, now_ms, ()))
        return Settlement(judged, self._leased(parts, reply, demands))

    def _leased(self, parts: OpenStore, reply: Any, demands: Sequence[Demand]) -> Activation:
        parts.bells.learn(int(reply[2]))
        parts.inbox.want(demands)
        return activation(reply, demands)

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        if not leases:
            return []
        return _statuses(await self._link.run("extend", [lease_ms, *_lease_words(leases)]))

    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        return _statuses(await self._link.read("check", *_lease_words(leases))) if leases else []

    def mark(self) -> int:
        return self._parts.bells.rings

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        return await self._parts.bells.wait(types, timeout_ms, since)

    def mark_finished(self) -> int:
        return self._parts.bells.rings

    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        return await self._parts.bells.wait([FINISHED], timeout_ms, since)

    # Changes ------------------------------------------------------------------------------------

    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        return await self._change("cancel", keys, reason)

    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        return await self._change("requeue", keys)

    async def set_retries(self, key: int, retries: int) -> Judged:
        return (await self._change("set_retries", [key], retries, ATTEMPTS_MAX))[0]

    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        return await self._change("reschedule", keys, "" if run_at_ms is None else run_at_ms, delay_ms)

    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        return await self._change("set_priority", keys, priority)

    async def delete(self, keys: Sequence[int]) -> list[Judged]:
        return [judged._replace(retries=None) for judged in await self._change("delete", keys)]

    async def _change(self, name: str, keys: Sequence[int], *words: Word) -> list[Judged]:
        return [_judged(told) for told in await self._link.run(name, [*words, *map(id_of, keys)])]

    # Questions ----------------------------------------------------------------------------------

    async def get(self, keys: Sequence[int]) -> list[Job | None]:
        return await read.get(self._link, keys)

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        return await read.owners(self._link, keys)

    async def history(self, key: int) -> list[HistoryEntry]:
        return await read.history(self._link, key)

    async def count(self) -> list[Count]:
        return await read.count(self._link)

    async def stats(self, hours: int) -> Stats:
        return await read.stats(self._link, hours)

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        return await read.measures(self._link, hours, type)

    async def oldest(self) -> list[Oldest]:
        return await read.oldest(self._link)

    async def explain(self, key: int) -> Explanation | None:
        return await read.explain(self._link, key)

    # Upkeep -------------------------------------------------------------------------------------

    async def sweep(self, holder: str) -> Swept:
        return await sweep(self._link, holder)

    # Moving to another store ----------------------------------------------------------------------

    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        return await move.dump(self._link, after, limit)

    async def load(self, records: Sequence[JobRecord]) -> int:
        return await move.load(self._link, records)

    # Registry -----------------------------------------------------------------------------------

    async def pause(self, type: str, paused: bool) -> None:
        await registry.pause(self._link, type, paused)

    async def open_breaker(self, type: str, open_ms: int) -> None:
        await registry.open_breaker(self._link, type, open_ms)

    async def reset_breaker(self, type: str) -> bool:
        return await registry.reset_breaker(self._link, type)

    async def set_policy(self, type: str, policy: str | None) -> None:
        await registry.set_policy(self._link, type, policy)

    async def add_group(self, type: str, group: str) -> None:
        await registry.add_group(self._link, type, group)

    async def drop_group(self, type: str, group: str) -> int:
        return await registry.drop_group(self._link, type, group)

    async def types(self) -> list[TypeInfo]:
        return await registry.types(self._link)

    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        await registry.register(self._link, kind, name, body, ttl_ms)

    async def unregister(self, kind: str, name: str) -> bool:
        return await registry.unregister(self._link, kind, name)

    async def registered(self, kind: str | None) -> list[Registered]:
        return await registry.registered(self._link, kind)

    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        return await registry.last_registered(self._link, kind, limit, below)

    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        return await registry.take_turn(self._link, name, holder, ttl_ms)

    async def subscribe(self, type: str, worker: str) -> str:
        return await registry.subscribe(self._link, type, worker)

    # Triggers -----------------------------------------------------------------------------------

    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        return await trigger_marks(self._link, triggers)

    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        return await fire(self._link, fires)

    async def find(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        return await read.find(self._link, wanted, limit, cursor)


def _refuse(transaction: object) -> NoReturn:
    raise InvalidInput(
        "tx",
        f"cannot be joined (a {type(transaction).__name__}): Redis has no transactions that others can join; "
        "leave tx out, and give the job a dedupe key so that creating it again after a failure is safe",
    )


def _lease_words(leases: Sequence[Lease]) -> list[Word]:
    return [word for lease in leases for word in (id_of(lease.key), lease.attempt)]


def _statuses(letters: bytes) -> list[LeaseStatus]:
    return [_STATUSES[letter] for letter in letters.decode()]


def _judged(told: bytes) -> Judged:
    if not told:
        return Judged(Verdict.NOT_FOUND)
    verdict, letter, attempts, max_attempts = told.decode().split()
    state = LETTERS[letter]
    return Judged(_VERDICTS[verdict], state, remaining_retries(state, int(attempts), int(max_attempts)))
