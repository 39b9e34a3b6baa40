"""The async client: every operation on jobs, on a store in this process or over gRPC to a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Unpack

from everwork.client import requests
from everwork.client.address import Tls
from everwork.client.job import ActiveJob, Attempt, lease_of
from everwork.client.transport import Connection, transport_to
from everwork.codec.filters import JobFilters, filter_of
from everwork.codec.job_values import PAGE_JOBS, Job, JobPage, every_job, with_reason
from everwork.codec.new_job import instant
from everwork.codec.urls import shown_url
from everwork.codec.values import stored_result
from everwork.core import checks
from everwork.core.job import HistoryEntry, NewJob
from everwork.core.leasing import Created, Judged, Spooled, accepted
from everwork.core.limits import (
    ATTEMPTS_MAX,
    DEFAULT_GROUP,
    DELAY_MS_MAX,
    ERROR_CHARS_MAX,
    LEASE_MS_DEFAULT,
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    STATISTICS_KEEP_HOURS,
)
from everwork.core.outcome import Outcome
from everwork.core.queries import CURSOR_MAX, BulkChange, Explanation, Stats
from everwork.core.states import State
from everwork.exceptions import InvalidInput, ResultTimeout

if TYPE_CHECKING:
    from everwork.client.stream import Stream
    from everwork.client.stream_source import Handler
    from everwork.client.transport import Transport
    from everwork.spool.settings import Spool

TIMEOUT_SECONDS: Final = 30.0
LEASE_SECONDS: Final = LEASE_MS_DEFAULT / 1000


class Client:
    """Creates, runs and manages jobs on a server or a store, without declared functions::

        async with Client("grpc://localhost:27500") as client:
            created = await client.create("email-send", {"to": "ada@example.com"})
            print(await client.result(created.key))

    The client opens on its first call and belongs to the event loop of that call. `SyncClient` is the blocking version.

    Args:
        url: `grpc://host:27500` or `grpcs://...` for a server; `sqlite:///...`, `postgresql://...` or `redis://...` for
            a store, opened in this process.
        key: The API key for a server.
        tls: True for TLS with the machine's certificates, or the path of a CA file. `grpcs://` implies True.
        tls_certificate: The path of the client's own certificate, a PEM file.
        tls_key: The path of the certificate's private key, a PEM file.
        timeout: Time limit of one call in seconds, including retries. Default: 30. While the server or the store is
            unavailable, calls that are safe to repeat are retried.
        offline: The path of a local file, or a `Spool`, that keeps new jobs and outcomes while the server or its
            engine is unavailable.

    Raises `BadConfiguration` or `InvalidInput` if an argument is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        tls: bool | str | Path = False,
        tls_certificate: str | Path | None = None,
        tls_key: str | Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
        offline: str | Spool | None = None,
    ) -> None:
        self._url = url
        self._is_offline = offline is not None
        seconds = checks.number("timeout", timeout, 0.001, DELAY_MS_MAX / 1000)
        self.transport = transport_to(url, key, Tls(tls, tls_certificate, tls_key), offline)
        self._connection = Connection(self.transport, seconds)
        self._call = self._connection.call
        self.streams: set[Stream] = self._connection.streams
        """The open streams."""

    # Create -------------------------------------------------------------------------------------

    async def create(self, type: str, variables: Mapping[str, Any] | None = None, /, **options: Any) -> Created:
        """Create a job and return its key. The job is stored when this returns.

        Options: `delay` (seconds) or `run_at` (a datetime with time zone), `priority`, `tenant`, `dedupe_key`,
        `limit_key`, `correlation_id`, `expires_at`, `timeout`, `headers`, `max_attempts`, `retry`, `extra`.

        In offline mode, the result has a spool id (`is_spooled`) instead of a key while the engine is unavailable.
        Raises `InvalidInput` if a value is invalid, and `EngineUnavailable`.
        """
        return (await self._create([requests.job_from(type, variables, options)]))[0]

    async def create_many(self, jobs: Iterable[requests.JobInput]) -> list[Created]:
        """Create up to 10,000 jobs, all or none.

        Each item is a pair of a type and its variables, or a job from `new_job`, which takes options.
        """
        checked = requests.jobs_from(jobs)
        return await self._create(checked) if checked else []

    async def _create(self, new: Sequence[NewJob]) -> list[Created]:
        safe = not self._is_offline and all(job.dedupe_key is not None for job in new)
        return await self._call(lambda jobs: jobs.create(new), safe=safe)

    async def delivered(self, created: Created | str, timeout: float | None = None) -> Created:
        """Wait until a job that was spooled, here or by the server, is delivered, and return it with its key.

        `created` is the return value of `create`, or a spool id. A job that already has a key is returned unchanged.
        Raises `NotDelivered` if the engine refused the job, and `ResultTimeout` after `timeout` seconds.
        """
        if isinstance(created, Created) and not created.is_spooled:
            return created
        from everwork.spool.waiting import delivered_within, until_delivered  # noqa: PLC0415 - only for offline mode

        spool_id = created.spool_id if isinstance(created, Created) else checks.name("spool_id", created)

        def look() -> Awaitable[Spooled]:
            return self._call(lambda jobs: jobs.spooled(spool_id), safe=True)

        return await delivered_within(timeout, spool_id, lambda: until_delivered(spool_id, look))

    # Work ---------------------------------------------------------------------------------------

    async def activate(
        self,
        type: str,
        *,
        worker: str | None = None,
        limit: int = 10,
        lease: float = LEASE_SECONDS,
        wait: float = 0.0,
        group: str = DEFAULT_GROUP,
        tenants: Iterable[str] = (),
    ) -> list[ActiveJob]:
        """Lease up to `limit` due jobs of a type, to run them yourself. `work` does this for you.

        Args:
            type: The job type.
            worker: Your name in the history of the jobs. Default: unique to this process.
            limit: Maximum number of jobs.
            lease: Seconds until another worker can run the jobs, unless you end or extend them first. Default: 30.
            wait: Seconds to wait for a job if none is due.
            group: The consumer group; empty for the default one.
            tenants: Only lease jobs of these tenants. Default: all tenants that the key has access to.
        """
        demand = requests.demand_from(
            type, worker or requests.worker_name(), limit, lease=lease, group=group, tenants=tenants
        )
        wait_ms = round(requests.seconds("wait", wait) * 1000)
        found = await self._call(lambda jobs: jobs.activate(demand, wait_ms), safe=True, more_seconds=wait)
        return [ActiveJob(source) for source in found]

    async def complete(
        self, job: Attempt, result: Any = None, *, attempt: int = 0, events: Iterable[requests.JobInput] = ()
    ) -> None:
        """Complete a job with a result. `events` are jobs to create in the same transaction.

        `job` is an `ActiveJob` or a key. With a key, `attempt` is the attempt number; 0 is the running attempt. Raises
        `LeaseLost` if the lease expired, and `WrongState` if the job has already ended.
        """
        await self._end(requests.completed(job, attempt, result, events), "completed")

    async def fail(
        self,
        job: Attempt,
        error: object,
        *,
        attempt: int = 0,
        retries: int | None = None,
        backoff: float | None = None,
        final: bool = False,
        variables: Mapping[str, Any] | None = None,
        by_policy: bool = False,
        strict: bool = False,
        traceback: str | None = None,
    ) -> None:
        """Report a failed attempt. By default, the job is retried according to its policy.

        Args:
            job: An `ActiveJob` or a key.
            error: An exception or a text.
            attempt: The attempt number if `job` is a key; 0 is the running attempt.
            retries: How many retries are left, overriding the policy; 0 makes the job a dead letter.
            backoff: Seconds before the next attempt.
            final: Whether the job fails permanently.
            variables: Values to merge into the job's variables for the next attempt.
            by_policy: Whether to classify the error and let the type's error rules decide whether to retry.
            strict: Like `by_policy`, but treats an error that matches no rule as permanent.
            traceback: The traceback to store. Default: the traceback of `error`, if it is a raised exception.
        """
        outcome = requests.failed(
            job, attempt, error, retries=retries, backoff=backoff, final=final, variables=variables,
            by_policy=by_policy, strict=strict, traceback=traceback,
        )  # fmt: skip
        await self._end(outcome, "failed")

    async def retry(self, job: Attempt, error: object = "", *, attempt: int = 0, delay: float | None = None) -> None:
        """Request another attempt, within the job's `max_attempts`, after `delay` seconds (default: by its policy)."""
        await self._end(requests.retried(job, attempt, error, delay), "retried")

    async def reject(self, job: Attempt, error: object = "", *, attempt: int = 0) -> None:
        """Reject an invalid job: it fails permanently and is never requeued automatically."""
        await self._end(requests.rejected(job, attempt, error), "rejected")

    async def release(self, job: Attempt, *, attempt: int = 0) -> None:
        """Return an unfinished job to the queue; the attempt does not count."""
        await self._end(requests.released(job, attempt), "released")

    async def throw(
        self,
        job: Attempt,
        code: str,
        error: object = "",
        *,
        attempt: int = 0,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """Fail a job permanently with a business error code."""
        await self._end(requests.thrown(job, attempt, code, error, variables), "ended with an error code")

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End many attempts in one call; returns one verdict per outcome."""
        checked = requests.outcomes_from(outcomes)
        return await self._settle(checked) if checked else []

    async def _settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        safe = all(outcome.attempt for outcome in outcomes)
        return await self._call(lambda jobs: jobs.settle(outcomes), safe=safe)

    async def _end(self, outcome: Outcome, done: str) -> None:
        try:
            [judged] = await self._settle([outcome])
        except InvalidInput as error:
            raise InvalidInput(error.field.removeprefix("outcomes[0]."), error.problem) from None
        accepted(outcome.key, judged, done)

    async def extend(self, job: Attempt, lease: float = LEASE_SECONDS, *, attempt: int = 0) -> None:
        """Extend the lease of a running job to `lease` seconds from now."""
        key, number = lease_of(job, attempt)
        lease_ms = requests.lease_ms(lease)
        judged = await self._call(lambda jobs: jobs.extend(key, number, lease_ms), safe=number > 0)
        accepted(key, judged, "extended")

    # Change -------------------------------------------------------------------------------------

    async def cancel(self, key: int | str, reason: str = "") -> State:
        """Cancel a pending or running job; returns its previous state."""
        number = checks.job_key(key)
        checks.text("reason", reason, ERROR_CHARS_MAX)
        return await self._call(lambda jobs: jobs.cancel(number, reason))

    async def requeue(self, key: int | str, variables: Mapping[str, Any] | None = None) -> State:
        """Requeue a dead letter or a job waiting for a retry: it is due immediately, with attempts reset to 0.

        `variables` replace all of the job's variables. Returns the previous state.
        """
        number = checks.job_key(key)
        return await self._call(lambda jobs: jobs.requeue(number, variables=variables))

    async def requeue_matching(self, /, *, all: bool = False, **wanted: Unpack[JobFilters]) -> BulkChange:
        """Requeue every matching dead letter. Takes the filters of `list`; `all=True` requeues every dead letter."""
        filter_ = filter_of(wanted)
        return await self._call(lambda jobs: jobs.requeue_matching(filter_, all=bool(all)))

    async def set_retries(self, key: int | str, retries: int) -> int:
        """Set how many attempts are left; returns the previous number."""
        number = checks.job_key(key)
        checks.whole_number("retries", retries, 0, ATTEMPTS_MAX)
        return await self._call(lambda jobs: jobs.set_retries(number, retries))

    async def reschedule(self, key: int | str, *, run_at: datetime | None = None, delay: float | None = None) -> State:
        """Change when a pending job is due: at `run_at`, a datetime with time zone, or `delay` seconds from now."""
        number = checks.job_key(key)
        if (run_at is None) == (delay is None):
            raise InvalidInput("run_at", "give either run_at or delay, not both")
        run_at_ms = None if run_at is None else instant("run_at", run_at)
        delay_ms = 0 if delay is None else checks.milliseconds("delay", delay, 0, DELAY_MS_MAX / 1000)
        return await self._call(lambda jobs: jobs.reschedule(number, run_at_ms=run_at_ms, delay_ms=delay_ms))

    async def run_now(self, key: int | str, *, reset: bool = False) -> State:
        """Make a pending job due now. `reset` also resets attempts and the last error, and accepts dead letters."""
        number = checks.job_key(key)
        return await self._call(lambda jobs: jobs.run_now(number, reset=bool(reset)))

    async def set_priority(self, key: int | str, priority: int) -> State:
        """Change the priority of a pending job."""
        number = checks.job_key(key)
        checks.whole_number("priority", priority, PRIORITY_MIN, PRIORITY_MAX)
        return await self._call(lambda jobs: jobs.set_priority(number, priority))

    async def delete(self, key: int | str) -> State:
        """Delete a finished job: completed, failed or cancelled."""
        number = checks.job_key(key)
        return await self._call(lambda jobs: jobs.delete(number))

    # Query --------------------------------------------------------------------------------------

    async def get(self, key: int | str) -> Job:
        """Return a job in its current state. Raises `JobNotFound` if it does not exist."""
        number = checks.job_key(key)
        return Job.of(await self._call(lambda jobs: jobs.get(number), safe=True))

    async def history(self, key: int | str) -> list[HistoryEntry]:
        """Return how each attempt of a job ended, oldest first."""
        number = checks.job_key(key)
        return await self._call(lambda jobs: jobs.history(number), safe=True)

    async def explain(self, key: int | str) -> Explanation:
        """Explain why a job is not running."""
        number = checks.job_key(key)
        return await self._call(lambda jobs: jobs.explain(number), safe=True)

    async def stats(self, hours: int = 24) -> Stats:
        """Return the number of jobs by state, and what workers did in the last `hours` hours."""
        checks.whole_number("hours", hours, 1, STATISTICS_KEEP_HOURS)
        return await self._call(lambda jobs: jobs.stats(hours), safe=True)

    async def result(self, key: int | str, wait: float = TIMEOUT_SECONDS) -> Any:
        """Wait up to `wait` seconds for a job to finish, and return its result.

        Raises `JobFailed` if it failed, `JobCancelled` if it was cancelled, `ResultNotStored` if its result could not
        be stored, and `ResultTimeout` if it has not finished in time.
        """
        number = checks.job_key(key)
        requests.seconds("wait", wait)
        try:
            text = await self._call(lambda jobs: jobs.result(number, wait), safe=True, more_seconds=wait)
        except ResultTimeout as error:
            raise await with_reason(error, self.explain(number), self.get(number)) from None
        return stored_result(number, text)

    async def page(
        self, /, cursor: int | None = None, *, limit: int = LIST_LIMIT_DEFAULT, **wanted: Unpack[JobFilters]
    ) -> JobPage:
        """Return one page of matching jobs and the cursor of the next page. Takes the filters of `list`."""
        filter_ = filter_of(wanted)
        checks.whole_number("limit", limit, 1, LIST_LIMIT_MAX)
        if cursor is not None:
            checks.whole_number("cursor", cursor, 1, CURSOR_MAX)
        found = await self._call(lambda jobs: jobs.find(filter_, limit, cursor), safe=True)
        return JobPage([Job.of(one) for one in found.jobs], found.next)

    def list(self, **wanted: Unpack[JobFilters]) -> AsyncIterator[Job]:
        """Iterate over all matching jobs: `async for job in client.list(type="email-send", state="failed")`.

        Filters: `type`, `state` (one or several), `tenants`, `worker`, `group`, `correlation_id`, `dedupe_key`,
        `created_after`, `created_before`, `error_text` (ignores case), `variables_text` (a text in the variables as
        compact JSON, case-sensitive), `due`. `order` is `newest` (default), `due` (pending jobs, earliest `run_at`
        first) or `failed` (failed jobs, latest failure first).
        """
        return every_job(lambda cursor: self.page(cursor, limit=PAGE_JOBS, **wanted))

    # Lifecycle ----------------------------------------------------------------------------------

    def stream(self, *, worker: str | None = None, lease: float = LEASE_SECONDS) -> Stream:
        """Return a stream for fast workers, which transfers jobs and outcomes in batches. Use it with `async with`."""
        return self.transport.stream(self, worker or requests.worker_name(), requests.lease_ms(lease))

    async def work(
        self,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int = 100,
        worker: str | None = None,
        lease: float = LEASE_SECONDS,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Run a worker: call handlers for jobs until `stop` is set or the task is cancelled.

        Args:
            handlers: A function for each job type. It takes an `ActiveJob` and returns the result. Plain functions run
                in threads. It can raise `Fail`, `Reject` or `Retry`; other exceptions are handled by the type's policy.
            concurrency: Maximum number of jobs running concurrently per type.
            worker: The worker's name in the history of its jobs. Default: unique to this process.
            lease: Seconds for which jobs are leased; extended while they are running. Default: 30.
            stop: Set this event to stop: running jobs finish, others are released.
        """
        from everwork.client.stream_source import runtime_handlers, work_on  # noqa: PLC0415

        checked = runtime_handlers(handlers, concurrency)
        async with self._connection.calls.within():
            await work_on(self.stream(worker=worker, lease=lease), checked, stop or asyncio.Event())

    async def open(self) -> Transport:
        """Open the client if it is not open yet. Optional: any other call opens it too."""
        return await self._connection.open()

    async def close(self) -> None:
        """Close the client. Calls in progress raise `EngineUnavailable`. The client can be opened again."""
        await self._connection.close()

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Client({shown_url(self._url)!r})"
