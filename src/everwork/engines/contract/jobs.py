"""The life of a job in the store: it is created, leased and settled, with wake-ups in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.aio.wakeup import WaitingTask, Wake, Watch
from everwork.core.job import NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement, Stamp
from everwork.core.outcome import Complete, Outcome


class JobFlow(ABC):
    """The calls of producers and workers: the hot path."""

    @abstractmethod
    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        """Accept jobs, all or none, durably before returning (G1).

        Keys increase in the order of the request. A dedupe key that already exists for (tenant, type), from
        earlier or from the same batch, creates nothing and returns the first job's key (G7). Each further
        group of the type that is registered at this moment gets a copy with its own key; the key of the
        default group's copy is returned. A job without max_attempts takes the value from its type's policy. A job that
        is due can be activated immediately.

        With a stamp, the call can be repeated: a producer's most recent number creates nothing and returns the same
        result as the first time, whatever has become of those jobs. A lower number is an `InvalidInput` on `stamp`.
        Producers not seen for `PRODUCER_KEEP_MS` are forgotten, and so are the oldest beyond `PRODUCERS_MAX`.
        """

    async def create_alone(self, jobs: Sequence[NewJob]) -> list[Created] | None:  # noqa: ARG002
        """`create` in the caller's thread while nothing else creates jobs; for engines made by `for_callers`.

        Returns None and creates nothing if there are other callers, or if this might block the event loop for long.
        """
        return None

    @abstractmethod
    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        """`create` inside the caller's own transaction: the jobs exist once it commits, and never if it rolls back.

        With a synchronous driver the call runs in the caller's thread and never suspends. A connection to another
        store, or one that is in no transaction and would not begin one automatically, is an `InvalidInput` on
        `tx`. The engine need not be open, but its schema must exist. A store whose transactions callers cannot
        join (Redis) refuses every `tx`.
        """

    @abstractmethod
    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        """Complete attempts inside the caller's own transaction, so that the work and its completion are atomic.

        Outcomes are judged as in `settle`; a wrong `tx` is refused as in `create_in`. The same outcome reported by
        `settle` after the commit is REPEATED; after a rollback the attempt is live as before. A breaker may learn of
        the completion only from that `settle`: the caller's transaction must not block other callers' failures.
        """

    @abstractmethod
    async def activate(self, demands: Sequence[Demand]) -> Activation:
        """Lease due jobs: up to each demand's limit, each with the next attempt number and `attempts + 1`.

        Order: within a lane higher priority first, then run_at, then key; lanes take turns, least recently
        served first (G9). Scheduled jobs that became due are promoted first (a bounded number per call, earliest
        first).

        Never leased: a job before its run_at, an expired job, a job of a paused type or of a type whose breaker is
        open, a job that another worker holds (G2). A half-open breaker admits one job, its probe, unless a probe is
        leased; see `core.breaker`. Never more than `max_running` jobs of a type and group are leased at the same
        time, never more than `max_running_per_key` of a lane with a limit key, and never more than the rate's number
        within one of its windows; the first lease after the end of a window starts the next one.

        The cost does not depend on jobs that are finished, scheduled for later, of another type, or in lanes that are
        at their limit (G10). The call records that the type was requested. `next_due_ms` is no later than the end of an
        open breaker or a full rate window of a requested type that has work.

        A demand with a `receiver` that got fewer jobs than its limit is parked for up to `PARK_MS`, one for each type.
        It replaces the demand that another worker has parked, unless that worker is still waiting and this call writes
        nothing else. If the next `create` of a single plain job (`NewJob.is_plain`) finds the queue without ready or
        due jobs, and the type has no groups, is not paused, and has no limit, rate or breaker, it also leases the job
        to that worker in the same transaction, as its first attempt, and sends it to the receiver. The store is then in
        the same state as if the worker had activated the job. An engine may decline; then the job is pending. A parked
        demand is used once. A demand that got all its jobs, or that has a `receiver` but may not be parked, withdraws
        the one that its worker has parked; so does `unpark`. A receiver's `lost` may be called although nothing was
        lost.

        Demands of the same type, group and tenants are served together, in their order. The jobs are in the order
        of the demands, and `shares` has one number for each demand.
        """

    async def unpark(self, worker: str, types: Sequence[str]) -> None:  # noqa: ARG002
        """Withdraw the demands that this worker has parked for these types: no more jobs are handed over to it.

        Jobs that were already handed over may still arrive.
        """
        return

    @abstractmethod
    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        """End attempts and, in the same transaction, serve demands.

        Each outcome is judged separately: it must name the live attempt of a processing job, or 0 when the caller
        does not know it (then only the state is checked). Otherwise it is NOT_FOUND; LEASE_LOST if the attempt is
        not the job's latest, or its lease has expired; WRONG_STATE if the attempt ended in another way (G3). An
        outcome that this attempt has reported before is REPEATED: ok, and nothing changes (G8).

        State, history with the traceback that an outcome carries, counts, result, the variables of a `Failed` or
        `Throw`, the type's breaker, and the jobs in the `events` of a `Complete` are one transaction. A breaker counts
        the completions of a batch before the failures; only types whose policy has a breaker count them. A lease past
        its deadline holds until a sweep ends it.
        """

    @abstractmethod
    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """Extend live leases to `lease_ms` from now. CANCELLED: the job was cancelled; LOST: anything else."""

    @abstractmethod
    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        """Like `extend`, but read-only: which leases are held, cancelled or lost."""

    @abstractmethod
    async def reclaim(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """Like `extend`, but also restore expired leases if no other attempt has started since.

        The expiry is undone in one transaction: the job is processing again, in the same attempt, by the same worker,
        whether it had become pending or failed. Its run_at, attempts and last error are as they were before the expiry.
        Its history no longer contains the expiry or a requeue that followed it, and such a requeue no longer counts as
        an automatic round. The statistics of the hour in which the expiry was counted (`stats`, `measures`) no longer
        contain it, without leaving zeros; an expiry counted by another store (`load`) is in none of them. Not undone:
        what the type's breaker has counted, which the next completion resets, and wake-ups. This call is for workers
        that were cut off from the store and have an outcome to report.
        """

    @abstractmethod
    def mark(self) -> int:
        """The current position in the stream of wake-ups; taken before `activate`, it keeps `wait` from missing any."""

    @abstractmethod
    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        """Return when work of these types may have become ready, or after the timeout (False).

        Returns immediately when a wake-up came after the mark `since`. May return too early; callers rely on it
        for speed only.
        """

    def watch(self, types: Sequence[str], timeout_ms: int, since: int, wake: Wake) -> Watch:
        """`wait` with a callback instead of a task, for a worker that has just called `activate`.

        `wake` is called when `wait` would return: once, in the running event loop, after this call has returned, and
        never after the watch has been cancelled. `since` is a mark from before the last `activate` of these types. If
        the store becomes unavailable, `wake` is called after a pause; an engine that is not open raises an error.
        """
        return WaitingTask(self.wait(types, timeout_ms, since), wake)

    @abstractmethod
    def mark_finished(self) -> int:
        """Like `mark`, for `wait_finished`."""

    @abstractmethod
    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        """Return when some job may have finished, or after the timeout (False). May return too early."""
