"""Access to a store beyond the job operations: batches, counts, registry. The engine stays private."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from everwork.aio.wakeup import Wake, Watch
from everwork.core.job import NewJob, StoredJob
from everwork.core.leasing import Created, Demand, Judged, Lease, LeaseStatus, Settlement, Spooled, Stamp, Verdict
from everwork.core.limits import LEASE_MS_DEFAULT
from everwork.core.outcome import Outcome
from everwork.core.queries import Count, JobFilter, Page, TypeInfo
from everwork.engines.contract import Engine
from everwork.engines.values import Health
from everwork.exceptions import EngineError, EngineUnavailable, NotDelivered
from everwork.logs import get_logger
from everwork.service.fleet.clients import ClientWorkers
from everwork.service.fleet.fleet import Fleet
from everwork.service.monitor.clock_watch import ClockWatch
from everwork.service.monitor.write_check import WriteCheck
from everwork.service.policies import Declared, PolicyFields, TypeDefaults, declare_policies, declare_settings

if TYPE_CHECKING:
    from everwork.engines.contract import Clock
    from everwork.service.access.audit import Audit
    from everwork.service.access.keys import KeyRing
    from everwork.service.access.sessions import Sessions
    from everwork.service.doctor import Diagnosis
    from everwork.service.monitor.sampler import MetricsSampler
    from everwork.service.triggers.loop import Scheduled, TriggerLoop
    from everwork.service.upkeep import Upkeep
    from everwork.spool.contents import SpoolStatus
    from everwork.spool.outbox import Outbox
    from everwork.spool.settings import Offline

log = get_logger("everwork")
T = TypeVar("T")

SILENCE_SECONDS: Final = 2.0
"""A store that takes longer than this to answer counts as unavailable, even if no call has failed."""


class StoreAccess:
    """A service's access to its store. `holder` identifies the service there, for example when it takes a turn."""

    def __init__(self, engine: Engine, holder: str, offline: Offline | None = None) -> None:
        self._engine = engine
        self._may_create = True
        self._late_until = 0.0
        """Until this monotonic time, leases may have expired because the store was unavailable."""
        self.holder = holder
        self.fleet = Fleet(engine)
        self.clients = ClientWorkers(self.fleet, holder)
        self._write_check = WriteCheck(engine, holder)
        self._clock_watch = ClockWatch(engine)
        self.outbox: Outbox | None = None
        if offline is not None:
            from everwork.spool.outbox import Outbox  # noqa: PLC0415 - loaded only for offline mode

            self.outbox = Outbox(offline, self)

    # Offline mode -------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the engine."""
        await self._engine.open(create=self._may_create)

    async def connected(self) -> None:
        """Wait until the store is open; without offline mode it always is."""
        if self.outbox is not None:
            await self.outbox.connected()

    async def once_connected(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run an action on the store now or, in offline mode, as soon as the store is available."""
        await (act() if self.outbox is None else self.outbox.once_connected(act))

    @property
    def is_connected(self) -> bool:
        """Whether the store has been opened; False only in offline mode, until the store is first available."""
        return self.outbox is None or self.outbox.is_connected

    def require_connected(self) -> None:
        """Refuse the call in offline mode if the store has never been open."""
        if not self.is_connected:
            raise EngineUnavailable("the engine is unavailable")

    async def spooled(self, spool_id: str, tenants: Sequence[str] = ()) -> Spooled | None:
        """The state of a spooled job; None if it is not in the spool, or belongs to another tenant."""
        return None if self.outbox is None else await self.outbox.spooled(spool_id, tenants)

    async def delivered(self, spool_id: str, *, wait: bool) -> Created:
        """The store's answer to a spooled job; waits for one if requested."""
        if self.outbox is None:
            raise NotDelivered(0, f"job '{spool_id}' is in a spool, but this process has no spool; pass offline=")
        return await self.outbox.delivered(spool_id, wait=wait)

    def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> Coroutine[Any, Any, list[Created]]:
        """Create jobs, only once even if the call is repeated."""
        return self._engine.create(jobs, stamp)

    async def settle_late(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts that ended while the engine was unavailable; expired leases are restored where possible."""
        return await self._settle_lapsed(outcomes, (await self._engine.settle(outcomes)).judged)

    async def _settle_lapsed(self, outcomes: Sequence[Outcome], judged: list[Judged]) -> list[Judged]:
        """Retry outcomes that were refused because their leases had expired; returns all verdicts."""
        lost = [at for at, one in enumerate(judged) if one.verdict is Verdict.LEASE_LOST]
        if lost:
            leases = [Lease(outcomes[at].key, outcomes[at].attempt) for at in lost]
            statuses = await self._engine.reclaim(leases, LEASE_MS_DEFAULT)
            held = [at for at, status in zip(lost, statuses, strict=True) if status is LeaseStatus.HELD]
            again = (await self._engine.settle([outcomes[at] for at in held])).judged if held else []
            for at, one in zip(held, again, strict=True):
                judged[at] = one
        return judged

    async def spool_status(self) -> SpoolStatus | None:
        """The status of this process's spool; None without offline mode, or if it cannot be read."""
        if self.outbox is None:
            return None
        try:
            return await self.outbox.status()
        except EngineUnavailable as error:
            log.warning("the spool could not be read", spool=self.outbox.path, error=str(error))
            return None

    async def keep_outcomes(self, outcomes: Sequence[Outcome]) -> bool:
        """Write outcomes into the spool; False without offline mode, or if it cannot be written."""
        if self.outbox is None:
            return False
        try:
            await self.outbox.keep_outcomes(outcomes)
        except EngineUnavailable as error:
            log.error("outcomes could not be written to the spool", error=str(error))
            return False
        return True

    @property
    def patience(self) -> float | None:
        """In offline mode, how long to wait for an answer before the store counts as unavailable."""
        return None if self.outbox is None else self.outbox.patience

    async def unkept(self, attempts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The attempts, by key and number, that have no outcome in the spool."""
        kept = await self.outbox.kept_attempts(attempts) if self.outbox is not None and attempts else ()
        return [one for one in attempts if one not in kept]

    def forget_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Delete outcomes from the spool if they were reported after all."""
        if self.outbox is not None:
            self.outbox.forget_outcomes(outcomes)

    # Batches for runtimes: on the hot path, so the engine's coroutine is returned, not awaited. ------

    def step(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Coroutine[Any, Any, Settlement]:
        """Settle outcomes and lease jobs in one step of the engine, not shared with other callers."""
        return self._engine.settle(outcomes, demands)

    def unpark(self, worker: str, types: Sequence[str]) -> Coroutine[Any, Any, None]:
        """Withdraw a worker's parked demands: no more jobs are handed over to it."""
        return self._engine.unpark(worker, types)

    async def extend_all(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """Extend leases to `lease_ms` from now; one status per lease. Leases that expired in an outage are restored."""
        statuses = await self._answered(self._engine.extend(leases, lease_ms), lease_ms)
        return await self._reclaimed(leases, statuses, lease_ms) if self.is_late else statuses

    async def reclaim_all(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """`extend_all` for a worker that was disconnected: expired leases are restored if possible."""
        return await self._reclaimed(leases, await self._engine.extend(leases, lease_ms), lease_ms)

    async def _reclaimed(
        self, leases: Sequence[Lease], statuses: list[LeaseStatus], lease_ms: int
    ) -> list[LeaseStatus]:
        """Restore leases found to be lost. Restoring them first would miss leases that expire before the check."""
        lost = [lease for lease, status in zip(leases, statuses, strict=True) if status is LeaseStatus.LOST]
        if not lost:
            return statuses
        found = dict(zip(lost, await self._answered(self._engine.reclaim(lost, lease_ms), lease_ms), strict=True))
        return [found.get(lease, status) for lease, status in zip(leases, statuses, strict=True)]

    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        """Whether leases still hold; one status per lease."""
        return await self._answered(self._engine.check(leases))

    async def _answered(self, call: Awaitable[T], lease_ms: int = LEASE_MS_DEFAULT) -> T:
        """Await the store's answer; if it fails or is late, note that the store was unavailable."""
        began = time.monotonic()
        try:
            answer = await call
        except EngineError:
            self.note_outage(lease_ms)
            raise
        if time.monotonic() - began > SILENCE_SECONDS:
            self.note_outage(lease_ms)
        return answer

    def note_outage(self, lease_ms: int = LEASE_MS_DEFAULT) -> None:
        """Note that leases may have expired because the store was unavailable: for a while, expired ones are restored.

        By the end of that time, every lease has been extended, including those of all streams of a server, which share
        this object.
        """
        self._late_until = max(self._late_until, time.monotonic() + max(lease_ms, LEASE_MS_DEFAULT) / 1000)

    @property
    def is_late(self) -> bool:
        """Whether leases may have expired because the store was unavailable."""
        return time.monotonic() < self._late_until

    def mark(self) -> int:
        """The number of wake-ups so far; a watch with this mark calls back immediately if there have been more."""
        return self._engine.mark()

    def watch_jobs(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
        """Call `wake` when jobs of these types may be due, or after the timeout, unless the watch is cancelled."""
        return self._engine.watch(types, timeout_ms, since, wake)

    # Many jobs ----------------------------------------------------------------------------------

    async def get_many(self, keys: Sequence[int]) -> list[StoredJob | None]:
        """Jobs in their current state; None for keys that do not exist."""
        return await self._engine.get(keys)

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        """The tenants of jobs; None for keys that do not exist."""
        return await self._engine.owners(keys)

    async def pause(self, type: str, paused: bool) -> None:
        """Pause or resume a type; running jobs are not affected."""
        await self._engine.pause(type, paused)

    # The store ----------------------------------------------------------------------------------

    async def find_step(self, filter_: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """`find` in one step of the engine, however few jobs match: `next` is where it stopped."""
        return await self._engine.find(filter_, limit, cursor)

    async def count(self) -> list[Count]:
        """How many jobs there are by type, group, tenant and state."""
        return await self._engine.count()

    async def types(self) -> list[TypeInfo]:
        """Every type in the store, by name."""
        return await self._engine.types()

    async def now(self) -> int:
        """The store's time in milliseconds."""
        return await self._engine.now()

    async def health(self) -> Health:
        """What the engine reports about itself."""
        return await self._engine.health()

    @property
    def clock_jumps(self) -> int:
        """How many jumps of the engine's clock this process has detected."""
        return self._clock_watch.jumps

    async def require_writable(self) -> None:
        """Raise `EngineError` if the store accepts no writes; the store is checked at most every few seconds."""
        await self._write_check.require()

    @property
    def is_remote(self) -> bool:
        """Whether the store is reached over a network."""
        return self._engine.is_remote

    async def subscribe(self, type: str, worker: str) -> str:
        """The group in which a worker class takes jobs of a type."""
        return await self._engine.subscribe(type, worker)

    async def declare_policies(self, policies: Mapping[str, PolicyFields]) -> None:
        """Store the policies that a program declares for types, overridden by the settings of its process."""
        await declare_policies(self._engine, policies)

    async def declare_settings(self, declared: Declared) -> None:
        """Store the policies that a settings file declares for types."""
        await declare_settings(self._engine, declared)

    def type_defaults(self, declared: Declared) -> TypeDefaults:
        """Applies the defaults of a settings file to new types."""
        return TypeDefaults(self._engine, declared)

    async def sweep(self, holder: str | None = None) -> bool:
        """Run one maintenance step; returns whether there is more to do."""
        if not await self._clock_watch.may_sweep():
            return False
        has_more = await self._clock_watch.end_overlong()
        return (await self._engine.sweep(holder or self.holder)).more or has_more

    # Everything else in the store: imported on use, because applications and workers need none of it. -----------

    @cached_property
    def audit(self) -> Audit:
        """The audit log."""
        from everwork.service.access.audit import Audit  # noqa: PLC0415

        return Audit(self._engine)

    async def close_audit(self) -> None:
        """Write pending audit entries."""
        if "audit" in vars(self):
            await self.audit.close()

    @cached_property
    def sessions(self) -> Sessions:
        """The dashboard's sessions."""
        from everwork.service.access.sessions import Sessions  # noqa: PLC0415

        return Sessions(self._engine)

    def key_ring(self, environment_key: str | None = None) -> KeyRing:
        """The API keys, not refreshed until it is opened."""
        from everwork.service.access.keys import KeyRing  # noqa: PLC0415

        return KeyRing(self._engine, environment_key=environment_key)

    async def forget_keys(self) -> int:
        """Delete API keys that expired or were revoked long ago; returns how many."""
        from everwork.service.access.keys import forget_keys  # noqa: PLC0415

        return await forget_keys(self._engine)

    def sampler(self) -> MetricsSampler:
        """A metrics sampler, which reads on request until it is opened."""
        from everwork.service.monitor.sampler import MetricsSampler  # noqa: PLC0415

        return MetricsSampler(self._engine, self.holder)

    def trigger_loop(self, triggers: Iterable[Scheduled]) -> TriggerLoop:
        """A loop that fires these triggers, except disabled ones."""
        from everwork.service.triggers.loop import TriggerLoop  # noqa: PLC0415

        return TriggerLoop(self._engine, triggers, self.fleet.triggers_off)

    async def run_upkeep(self, triggers: Sequence[Scheduled]) -> Upkeep:
        """Run all maintenance that is due, and fire these triggers; for short-lived callers."""
        from everwork.service.upkeep import run_upkeep  # noqa: PLC0415

        return await run_upkeep(self._engine, self.holder, triggers)

    async def examine(self, host_clock: Clock) -> Diagnosis:
        """The doctor's report."""
        from everwork.service.doctor import examine  # noqa: PLC0415

        return await examine(self._engine, host_clock, await self.spool_status())
