"""What callers need of a store beyond the job operations: batches, counts, registry. The engine stays private."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from everwork.core.job import Job
from everwork.core.leasing import Demand, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Outcome
from everwork.core.queries import Count, JobFilter, Page, TypeInfo
from everwork.engines.contract import Engine
from everwork.engines.values import Health
from everwork.service.fleet.fleet import Fleet
from everwork.service.policies import Declared, PolicyFields, declare_policies, declare_settings

if TYPE_CHECKING:
    from everwork.engines.contract import Clock
    from everwork.service.access.audit import Audit
    from everwork.service.access.keys import KeyRing
    from everwork.service.access.sessions import Sessions
    from everwork.service.doctor import Diagnosis
    from everwork.service.monitor.sampler import MetricsSampler
    from everwork.service.triggers.loop import Scheduled, TriggerLoop


class StoreAccess:
    """A service's access to its store. `holder` is its name there."""

    def __init__(self, engine: Engine, holder: str) -> None:
        self._engine = engine
        self.holder = holder
        self.fleet = Fleet(engine)

    # Batches of runtimes. On the hot path, so the engine's coroutine is returned and not awaited a second time. ------

    def step(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Coroutine[Any, Any, Settlement]:
        """Settle outcomes and lease jobs in one step of the engine, not shared with other callers."""
        return self._engine.settle(outcomes, demands)

    def extend_all(self, leases: Sequence[Lease], lease_ms: int) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Let leases end `lease_ms` from now; one status per lease."""
        return self._engine.extend(leases, lease_ms)

    def check(self, leases: Sequence[Lease]) -> Coroutine[Any, Any, list[LeaseStatus]]:
        """Whether leases still hold; one status per lease."""
        return self._engine.check(leases)

    def mark(self) -> int:
        """The number of wake-ups so far: `wait_for_jobs` returns immediately if there were more since."""
        return self._engine.mark()

    def wait_for_jobs(self, types: Sequence[str], timeout_ms: int, since: int) -> Coroutine[Any, Any, bool]:
        """Wait until jobs of these types may be due; False after the timeout."""
        return self._engine.wait(types, timeout_ms, since=since)

    # Many jobs ----------------------------------------------------------------------------------

    async def get_many(self, keys: Sequence[int]) -> list[Job | None]:
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

    async def sweep(self, holder: str | None = None) -> bool:
        """Do one step of upkeep; whether there is more to do."""
        return (await self._engine.sweep(holder or self.holder)).more

    # What else is kept in the store. Imported when used: applications and workers need none of it. ------------------

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

    def key_ring(self) -> KeyRing:
        """The API keys, not refreshed until it is opened."""
        from everwork.service.access.keys import KeyRing  # noqa: PLC0415

        return KeyRing(self._engine)

    def sampler(self) -> MetricsSampler:
        """A metrics sampler, which reads on request until it is opened."""
        from everwork.service.monitor.sampler import MetricsSampler  # noqa: PLC0415

        return MetricsSampler(self._engine, self.holder)

    def trigger_loop(self, triggers: Iterable[Scheduled]) -> TriggerLoop:
        """A loop that fires these triggers, except those that are switched off."""
        from everwork.service.triggers.loop import TriggerLoop  # noqa: PLC0415

        return TriggerLoop(self._engine, triggers, self.fleet.triggers_off)

    async def examine(self, host_clock: Clock) -> Diagnosis:
        """What the doctor finds."""
        from everwork.service.doctor import examine  # noqa: PLC0415

        return await examine(self._engine, host_clock)
