"""The hot path: create, activate, settle, extend, check, and waiting in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from everwork.aio.wakeup import Wake, Watch
from everwork.core.job import NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement, Stamp
from everwork.core.outcome import Complete, Outcome
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.redis.opened import OpenStore, RedisBase
from everwork.engines.redis.records import WAKEUP_NUMBER, activation, create_args, created, demand_args, id_of
from everwork.engines.redis.settle import settle
from everwork.engines.redis.wake import FINISHED
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import outdated
from everwork.exceptions import InvalidInput

_LEASE_STATUSES: Final = {"h": LeaseStatus.HELD, "c": LeaseStatus.CANCELLED, "l": LeaseStatus.LOST}
"""Lease statuses, by the letter that the scripts return for each lease."""


class RedisJobs(RedisBase, JobFlow):
    """The life of a job in the store; each call is one script, except that failures are decided in between."""

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        if not jobs:
            return []
        reply = await self._connection.run("create", create_args(jobs, stamp))
        if stamp is not None and reply == b"outdated":
            raise outdated(stamp)
        return created(reply, len(jobs))

    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:  # noqa: ARG002
        _refuse(transaction)

    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:  # noqa: ARG002
        _refuse(transaction)

    async def activate(self, demands: Sequence[Demand]) -> Activation:
        store = self._store
        args = demand_args(demands, await store.wakeups.tokens(demands))
        return _leased(store, await store.connection.run("activate", args), demands)

    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        if not outcomes:
            return Settlement([], await self.activate(demands))
        store = self._store
        args = demand_args(demands, await store.wakeups.tokens(demands)) if demands else ()
        judged, reply, now_ms = await settle(store.connection, outcomes, args)
        if reply is None:
            return Settlement(judged, Activation([], None, now_ms, ()))
        return Settlement(judged, _leased(store, reply, demands))

    async def unpark(self, worker: str, types: Sequence[str]) -> None:
        if types:
            await self._connection.run("unpark", [worker, *types], replicas=0)

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        if not leases:
            return []
        return _statuses(await self._connection.run("extend", [lease_ms, *_lease_args(leases)]))

    async def reclaim(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        if not leases:
            return []
        return _statuses(await self._connection.run("reclaim", [lease_ms, *_lease_args(leases)]))

    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        return _statuses(await self._connection.read("check", *_lease_args(leases))) if leases else []

    def mark(self) -> int:
        return self._store.wakeups.received

    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        return await self._store.wakeups.wait(types, timeout_ms, since)

    def watch(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
        watch = self._store.wakeups.watch(types, timeout_ms, since, wake)
        return super().watch(types, timeout_ms, since, wake) if watch is None else watch

    def mark_finished(self) -> int:
        return self._store.wakeups.received

    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        return await self._store.wakeups.wait([FINISHED], timeout_ms, since)


def _leased(store: OpenStore, reply: Any, demands: Sequence[Demand]) -> Activation:
    store.wakeups.note_work(int(reply[WAKEUP_NUMBER]))
    store.inbox.watch(demands)
    return activation(reply, demands)


def _refuse(transaction: object) -> NoReturn:
    raise InvalidInput(
        "tx",
        f"cannot be joined (a {type(transaction).__name__}): Redis has no transactions that others can join; "
        "use app.after_commit(session), or leave tx out and give the job a dedupe key",
    )


def _lease_args(leases: Sequence[Lease]) -> list[Arg]:
    return [arg for lease in leases for arg in (id_of(lease.key), lease.attempt)]


def _statuses(letters: bytes) -> list[LeaseStatus]:
    return [_LEASE_STATUSES[letter] for letter in letters.decode()]
