"""A job's way through the store: created, leased, settled; and the wake-ups between these."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.core.job import NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Complete, Outcome


class JobFlow(ABC):
    """What producers and workers call; the hot path."""

    @abstractmethod
    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Accept jobs, all or none, durably before returning (G1).

        Keys increase in the order of the request. A dedupe key that (tenant, type) knows already, from
        earlier or from the same batch, creates nothing and answers the first job's key (G7). Each further
        group of the type, as registered at this moment, gets a copy with a key of its own; the default
        copy's key is answered. A job without max_attempts gets its type's policy's. A job that is due is
        activatable at once.
        """

    @abstractmethod
    async def create_in(self, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
        """`create` inside the caller's own transaction: nothing exists before it commits, or if it rolls back.

        With a synchronous driver the call runs in the caller's thread and never suspends. A connection that
        is not on this store, or is in no transaction and would begin none by itself, is an `InvalidInput` on
        `tx`. The engine need not be open, but its schema must exist. A store whose transactions nobody can join
        (Redis) refuses every `tx`.
        """

    @abstractmethod
    async def complete_in(self, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
        """Complete attempts inside the caller's own transaction, so that the work and its completion are one step.

        Judged, and refused for a wrong `tx`, as by `settle` and `create_in`. The same outcome reported by
        `settle` after the commit is REPEATED; after a rollback the attempt is as live as before. A breaker may hear of
        the completion only by that `settle`: the caller's transaction must not hold up others who fail.
        """

    @abstractmethod
    async def activate(self, demands: Sequence[Demand]) -> Activation:
        """Lease due jobs: up to each demand's limit, each with the next attempt number and `attempts + 1`.

        Inside a lane: higher priority first, then run_at, then key; lanes take turns, least recently
        served first (G9). Jobs that became due are promoted first (a bounded number per call, earliest
        first). Never leased: a job before its run_at, one that has expired, one of a paused type or
        of a type whose breaker is open, one that another worker holds (G2). A half-open breaker lets one job through,
        its probe, as long as no probe is leased; see `core.breaker`. Of a type and group never more than `max_running`
        jobs are leased at once, of a lane with a limit key never more than `max_running_per_key`, and never more than
        the rate's number are leased in one of its windows; the first lease after a window's end begins the next one.
        The cost does not depend on what is finished, scheduled later, of another type, or in lanes that are at their
        limit (G10). Remembers that the type was asked for. `next_due_ms` is at the latest the end of an open breaker or
        of a full window of a type that was asked for and has work.
        Demands of one type, group and tenants are served together, in their order. The jobs stand in the order of
        the demands, and `shares` has one number for each demand.
        """

    @abstractmethod
    async def settle(self, outcomes: Sequence[Outcome], demands: Sequence[Demand] = ()) -> Settlement:
        """End attempts and, in the same step, answer demands.

        Each outcome is judged by itself: it must name the live attempt of a processing job, or 0 when the
        caller cannot name it (checked by state only, then). Otherwise NOT_FOUND; LEASE_LOST if the attempt is
        not the job's latest, or its lease has lapsed; WRONG_STATE if it ended in another way (G3). An outcome
        that this attempt has reported before is REPEATED: ok, and nothing changes (G8). State, history, counts,
        result, the variables that a `Fail` or `Throw` brings, the type's breaker and the jobs that a `Complete` carries
        in `events` are one transaction. A breaker meets the completions of a batch before its failures; only types
        whose policy has one count. A lease that ran out holds until a sweep takes it away.
        """

    @abstractmethod
    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """Let live leases end `lease_ms` from now. CANCELLED: the job was cancelled meanwhile; LOST: anything else."""

    @abstractmethod
    async def check(self, leases: Sequence[Lease]) -> list[LeaseStatus]:
        """The read-only twin of `extend`: which leases still hold, which are cancelled, which are lost."""

    @abstractmethod
    def mark(self) -> int:
        """A mark in the stream of wake-ups; taken before `activate`, it lets `wait` miss none that follow."""

    @abstractmethod
    async def wait(self, types: Sequence[str], timeout_ms: int, since: int | None = None) -> bool:
        """Return when work of these types may have become ready, or after the timeout (False).

        Returns at once when a wake-up came after the mark `since`. May return too early, and is never
        relied on for anything but speed.
        """

    @abstractmethod
    def mark_finished(self) -> int:
        """The twin of `mark` for `wait_finished`."""

    @abstractmethod
    async def wait_finished(self, timeout_ms: int, since: int | None = None) -> bool:
        """Return when some job may have finished, or after the timeout (False). May return too early."""
