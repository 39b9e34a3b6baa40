"""The engine contract: what every store of jobs must do. The docstrings are the contract.

Rules that hold for every call:

- A call is one atomic step. It happened as a whole when it returned, or not at all when it raised.
- Values have been checked by the caller (`service.intake`); engines do not check them again.
- Batches answer item by item, in the order of the request. One refused item does not disturb the others.
- Time is the engine's own clock (G11). Durations come in, the engine adds its now.
- What cannot be done because of the job's state is a `Judged`, not an exception. Exceptions are for
  the operator: `EngineUnavailable` and its kin. After `EngineUnavailable` from a writing call its effect
  is unknown; repeating `settle`, `cancel` or a deduplicated `create` is safe.
- A refused item changes nothing: no state, no history, no count.

Only `activate`, `subscribe`, `fire`, breaker and limits decide inside the store, by the numbers of the type's policy
(`core.policy`, `core.breaker`). Every other rule is decided by the pure core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.leasing import Activation, Created, Demand, Judged, Lease, LeaseStatus, Settlement
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats, TypeInfo
from everwork.core.states import State
from everwork.engines.values import Durability, Fire, Fired, Health, JobRecord, Registered, Schema, Swept, TriggerMarks

Clock = Callable[[], int]
"""Returns the instant, in milliseconds UTC."""


class Engine(ABC):
    """A store that holds jobs and enforces every rule."""

    # Life ---------------------------------------------------------------------------------------

    @abstractmethod
    async def open(self, *, create: bool = True) -> None:
        """Connect, check the store, and bring its schema up to date; safe when several start at once.

        Without `create`, a store that has never held jobs is `EngineUnavailable` and is left as it is.
        Raises `BadConfiguration`, `EngineUnavailable` or `SchemaMismatch`, in one line that says what to do.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted and let go of every resource. A second close does nothing."""

    @abstractmethod
    def fresh(self) -> Engine:
        """Another engine on the same store, with the same settings, not open: an open one belongs to one event loop."""

    @property
    @abstractmethod
    def durability(self) -> Durability:
        """What an accepted job survives with the settings in force (G1)."""

    @property
    @abstractmethod
    def is_remote(self) -> bool:
        """Whether the store is a server's: each event loop of a process may then have an engine of its own."""

    @property
    @abstractmethod
    def retention(self) -> Mapping[State, int]:
        """How long, in milliseconds, a job is kept after it finished, by the state it finished in."""

    @abstractmethod
    async def health(self) -> Health:
        """Reach the store and tell its version, schema and settings, without secrets."""

    @abstractmethod
    async def schema(self) -> Schema:
        """The version of the store's schema, read without changing anything; the engine need not be open."""

    # Hot path -----------------------------------------------------------------------------------

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

    # Changes by people and programs -------------------------------------------------------------

    @abstractmethod
    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        """Cancel pending and processing jobs; the holder of a running one learns it by `check` or `extend`.

        Cancelling a cancelled job is REPEATED; completed and failed ones are WRONG_STATE. The state
        answered is the one in which the job was found.
        """

    @abstractmethod
    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        """Bring dead letters back: pending, due now, attempts 0, max_attempts as created, last error cleared.

        The attempt number goes on and the history stays. Any other state is WRONG_STATE.
        """

    @abstractmethod
    async def set_retries(self, key: int, retries: int) -> Judged:
        """Make the job show this many retries; the previous number is answered.

        Pending: 0 is WRONG_STATE (cancel it instead). Processing: 0 is taken as 1, the attempt that runs.
        A dead letter is requeued with `retries` attempts; 0 is REPEATED. Other states are WRONG_STATE. Counted
        attempts never pass 100, so a job that has used many may show fewer.
        """

    @abstractmethod
    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        """Let pending jobs run at `run_at_ms`, or `delay_ms` from now (0: run now). Others are WRONG_STATE."""

    @abstractmethod
    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        """Change the priority of pending jobs. Others are WRONG_STATE."""

    @abstractmethod
    async def delete(self, keys: Sequence[int]) -> list[Judged]:
        """Remove finished jobs with their payload, result, history and dedupe key. Live ones are WRONG_STATE."""

    # Questions ----------------------------------------------------------------------------------

    @abstractmethod
    async def get(self, keys: Sequence[int]) -> list[Job | None]:
        """The jobs as they stand, None for those that do not exist."""

    @abstractmethod
    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        """The tenants of jobs, None for those that do not exist; nothing else of them is read."""

    @abstractmethod
    async def history(self, key: int) -> list[HistoryEntry]:
        """How each attempt ended and each requeue, oldest first, at most the newest 200; empty if unknown."""

    @abstractmethod
    async def count(self) -> list[Count]:
        """How many jobs are in which state, from maintained counts, exact at this moment; zeros are left out."""

    @abstractmethod
    async def stats(self, hours: int) -> Stats:
        """The counts, and what workers did in the last `hours` hours, by hour, type and worker."""

    @abstractmethod
    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        """How attempts went that ended in the last `hours` hours, of one type or of all, by hour, type and name.

        Every attempt that ends as completed, failed or retried is in exactly one bucket of durations and in one of
        waits (`core.measures`), those that failed or were retried are also counted by the sort of their failure; all
        in the transaction that ends them. Releases and cancellations are not counted. Kept as long as the hours of
        `stats`. There may be very many, so that others are served meanwhile: what is told of one hour and type is of
        one moment, but hours may be read one after the other.
        """

    @abstractmethod
    async def oldest(self) -> list[Oldest]:
        """Since when the longest waiting due job of each type and group waits, by type and group; none if none does.

        Paused types and open breakers make no difference. Its cost does not grow with the number of waiting jobs, but
        with their lanes and priorities: of these at most OLDEST_LOOK_MAX are looked at for each type and group.
        """

    @abstractmethod
    async def explain(self, key: int) -> Explanation | None:
        """Why the job is not running, or what it is doing; None if there is no such job."""

    # Upkeep -------------------------------------------------------------------------------------

    @abstractmethod
    async def sweep(self, holder: str) -> Swept:
        """One bounded step of upkeep.

        Whoever looks first takes lapsed leases away: each is a failed attempt, decided by the core (G6); and
        cancels pending jobs past their expiry. No turn is needed for that: the death of whoever holds it
        must not delay a recovery. One process at a time, the holder of the turn "sweep", also deletes
        finished jobs past their retention, which a type's policy may set, requeues dead letters whose type's policy
        says so (never rejected ones; each at most `failed_job_retry_rounds` times in its life, in the history as a
        requeue whose error says "by itself"), and folds counts.
        """

    # Moving to another store ----------------------------------------------------------------------

    @abstractmethod
    async def dump(self, after: int, limit: int) -> list[JobRecord]:
        """Every job with a key over `after`, lowest first, with all that is known of it; empty at the end."""

    @abstractmethod
    async def load(self, records: Sequence[JobRecord]) -> int:
        """Write jobs as another store has dumped them, with their keys; answer how many.

        One whose key exists is left as it is, so that a copy that was cut short can be repeated. Types and
        groups appear as they are met. Keys given later are higher than every key loaded.
        """

    # Registry -----------------------------------------------------------------------------------

    @abstractmethod
    async def pause(self, type: str, paused: bool) -> None:
        """Stop or resume the activation of a type; what is running goes on. Doing it twice changes nothing."""

    @abstractmethod
    async def open_breaker(self, type: str, open_ms: int) -> None:
        """Let a type's breaker be open for so long from now, also if its policy has none; then it is half-open."""

    @abstractmethod
    async def reset_breaker(self, type: str) -> bool:
        """Close a type's breaker, so that its jobs may start at once; forget its failures. False if it was closed."""

    @abstractmethod
    async def set_policy(self, type: str, policy: str | None) -> None:
        """Keep a type's policy (a JSON text), so that every process decides alike; None takes it away.

        Limits hold from the next claim on; what runs above a new limit goes on. A breaker whose rule was taken away
        stays as it is until it is reset or its probe succeeds.
        """

    @abstractmethod
    async def add_group(self, type: str, group: str) -> None:
        """Register a further group of a type: jobs created from now on get a copy for it."""

    @abstractmethod
    async def drop_group(self, type: str, group: str) -> int:
        """Forget a group: its pending jobs are cancelled (their number is answered), running ones go on.

        One that would be pending again is cancelled by the next sweep.
        """

    @abstractmethod
    async def types(self) -> list[TypeInfo]:
        """Every type that the engine has seen, by name."""

    @abstractmethod
    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        """Write an entry of the registry, or write it anew; without ttl it stays until it is taken away."""

    @abstractmethod
    async def unregister(self, kind: str, name: str) -> bool:
        """Take an entry away; False if there was none."""

    @abstractmethod
    async def registered(self, kind: str | None) -> list[Registered]:
        """The entries of a kind that have not run out, by name; None: of every kind, by kind and name. No turns."""

    @abstractmethod
    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        """At most `limit` entries of a kind that have not run out, highest name first, from below a name on."""

    @abstractmethod
    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        """Take or prolong a turn that one holder has at a time; False while somebody else's has not run out."""

    @abstractmethod
    async def subscribe(self, type: str, worker: str) -> str:
        """The group in which a worker class takes jobs of a type, the same whenever it asks.

        The first worker that asks owns the default group. Each further one has a group of its own, with the
        worker's name, added now if it is not there: jobs created from now on get a copy for it. Who owns the default
        group stands in the registry (kind "owner", the type's name, the worker as body), so that it can be taken away:
        then the next worker without a group of its own has it.
        """

    # Triggers -----------------------------------------------------------------------------------

    @abstractmethod
    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        """Where triggers stand. One that is not known yet begins now: `began_ms` and `last_ms` are the engine's now.

        Marks stand in the registry (kind "trigger-mark", body "<began_ms> <last_ms>") and move with it to other stores.
        """

    @abstractmethod
    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        """Let time points pass, each once, whoever asks and how often (G12).

        Judged one after the other: a point at or before the trigger's mark has passed and creates nothing; a later
        one becomes the mark and its job is created, as by `create`, all in one transaction. A trigger without mark
        begins with its point.
        """

    # Last in the class, because its name hides the builtin in the annotations below it.

    @abstractmethod
    async def list(self, wanted: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Jobs that match, newest key first, from below the cursor on. Every job is met once by paging on.

        A page may be short although there is a next one: a call looks at LIST_SCAN_MAX jobs at most, and large jobs
        end their page with PAGE_BYTES_MAX.
        """
