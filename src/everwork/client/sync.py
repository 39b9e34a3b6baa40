"""The same client for code without an event loop: every verb blocks, and may be called from any thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from everwork.aio.loops import new_loop
from everwork.client.client import LEASE_SECONDS, TIMEOUT_SECONDS, Client
from everwork.client.job import ActiveJob, Attempt
from everwork.client.requests import JobInput
from everwork.client.transport import closed
from everwork.core.job import HistoryEntry, Job
from everwork.core.leasing import Created, Judged
from everwork.core.limits import DEFAULT_GROUP, LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX
from everwork.core.outcome import Outcome
from everwork.core.queries import BulkChange, Explanation, Page, Stats
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, EverworkError

if TYPE_CHECKING:
    from everwork.client.stream_source import Handler

T = TypeVar("T")

CLOSE_SECONDS: Final = 15.0


class SyncClient:
    """`Client` with an event loop in its own thread; see there for what each verb does."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        tls: bool | str | Path = False,
        tls_certificate: str | Path | None = None,
        tls_key: str | Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._client = Client(url, key=key, tls=tls, tls_certificate=tls_certificate, tls_key=tls_key, timeout=timeout)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._stops: set[Callable[[], object]] = set()

    # Create -------------------------------------------------------------------------------------

    def create(self, type: str, variables: Mapping[str, Any] | None = None, /, **options: Any) -> Created:
        """Create a job, durably, and return its key."""
        return self._run(self._client.create(type, variables, **options))

    def create_many(self, jobs: Iterable[JobInput]) -> list[Created]:
        """Create many jobs, all or none."""
        return self._run(self._client.create_many(jobs))

    # Work ---------------------------------------------------------------------------------------

    def activate(
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
        """Lease jobs; with nothing to do, wait for some."""
        call = self._client.activate(
            type, worker=worker, limit=limit, lease=lease, wait=wait, group=group, tenants=tenants
        )
        return self._run(call)

    def complete(self, job: Attempt, result: Any = None, *, attempt: int = 0, events: Iterable[JobInput] = ()) -> None:
        """The work is done."""
        self._run(self._client.complete(job, result, attempt=attempt, events=events))

    def fail(
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
    ) -> None:
        """The attempt failed."""
        call = self._client.fail(
            job, error,
            attempt=attempt, retries=retries, backoff=backoff, final=final, variables=variables, by_policy=by_policy,
        )  # fmt: skip
        self._run(call)

    def retry(self, job: Attempt, error: object = "", *, attempt: int = 0, delay: float | None = None) -> None:
        """Request another attempt."""
        self._run(self._client.retry(job, error, attempt=attempt, delay=delay))

    def reject(self, job: Attempt, error: object = "", *, attempt: int = 0) -> None:
        """The job is invalid."""
        self._run(self._client.reject(job, error, attempt=attempt))

    def release(self, job: Attempt, *, attempt: int = 0) -> None:
        """Release the job."""
        self._run(self._client.release(job, attempt=attempt))

    def throw(
        self,
        job: Attempt,
        code: str,
        error: object = "",
        *,
        attempt: int = 0,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        """A business error with a code."""
        self._run(self._client.throw(job, code, error, attempt=attempt, variables=variables))

    def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End many attempts in one call."""
        return self._run(self._client.settle(outcomes))

    def extend(self, job: Attempt, lease: float = LEASE_SECONDS, *, attempt: int = 0) -> None:
        """Extend the lease."""
        self._run(self._client.extend(job, lease, attempt=attempt))

    # Change -------------------------------------------------------------------------------------

    def cancel(self, key: int | str, reason: str = "") -> State:
        """Cancel a job."""
        return self._run(self._client.cancel(key, reason))

    def requeue(self, key: int | str) -> State:
        """Requeue a dead letter."""
        return self._run(self._client.requeue(key))

    def requeue_matching(self, *, all: bool = False, **wanted: Any) -> BulkChange:
        """Requeue every dead letter that matches; without any filter, `all` must be given."""
        return self._run(self._client.requeue_matching(all=all, **wanted))

    def set_retries(self, key: int | str, retries: int) -> int:
        """Change how many attempts are left."""
        return self._run(self._client.set_retries(key, retries))

    def reschedule(self, key: int | str, *, run_at: datetime | None = None, delay: float | None = None) -> State:
        """Change when a pending job runs."""
        return self._run(self._client.reschedule(key, run_at=run_at, delay=delay))

    def run_now(self, key: int | str) -> State:
        """Run a pending job now."""
        return self._run(self._client.run_now(key))

    def set_priority(self, key: int | str, priority: int) -> State:
        """Change the priority of a pending job."""
        return self._run(self._client.set_priority(key, priority))

    def delete(self, key: int | str) -> State:
        """Delete a finished job."""
        return self._run(self._client.delete(key))

    # Query --------------------------------------------------------------------------------------

    def get(self, key: int | str) -> Job:
        """Return a job with everything that is known of it."""
        return self._run(self._client.get(key))

    def history(self, key: int | str) -> list[HistoryEntry]:
        """How a job's attempts ended, oldest first."""
        return self._run(self._client.history(key))

    def explain(self, key: int | str) -> Explanation:
        """Why a job is not running."""
        return self._run(self._client.explain(key))

    def stats(self, hours: int = 24) -> Stats:
        """Counts by state, and what workers did in the last hours."""
        return self._run(self._client.stats(hours))

    def result(self, key: int | str, wait: float = TIMEOUT_SECONDS) -> Any:
        """Wait for a job to finish, and return its result."""
        return self._run(self._client.result(key, wait))

    def page(self, cursor: int | None = None, *, limit: int = LIST_LIMIT_DEFAULT, **wanted: Any) -> Page:
        """One page of matching jobs, newest first, and the cursor of the next."""
        return self._run(self._client.page(cursor, limit=limit, **wanted))

    def list(self, **wanted: Any) -> Iterator[Job]:
        """Every matching job, newest first."""
        page = self.page(limit=LIST_LIMIT_MAX // 4, **wanted)
        while True:
            yield from page.jobs
            if page.next is None:
                return
            page = self.page(page.next, limit=LIST_LIMIT_MAX // 4, **wanted)

    # Lifecycle ----------------------------------------------------------------------------------

    def work(
        self,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int = 10,
        worker: str | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:
        """Run handlers until `stop` is called from another thread or from a handler; plain functions run in threads."""

        async def working() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            request_stop = lambda: loop.call_soon_threadsafe(stop.set)  # noqa: E731 - discarded below
            self._stops.add(request_stop)
            try:
                await self._client.work(handlers, concurrency=concurrency, worker=worker, lease=lease, stop=stop)
            finally:
                self._stops.discard(request_stop)
                ended.set()

        ended = threading.Event()
        try:
            self._run(working())
        except EverworkError:
            raise
        except BaseException:
            ended.wait(CLOSE_SECONDS)  # After Ctrl+C, what ran is released before the program exits.
            raise

    def stop(self) -> None:
        """Make `work` return: what runs is finished, what has not started is released."""
        for request_stop in list(self._stops):
            request_stop()

    def open(self) -> None:
        """Open the transport, unless it is open already."""
        self._run(self._opened())

    def close(self) -> None:
        """Close it: calls of other threads raise `EngineUnavailable`. It can be opened again."""
        if self._process != os.getpid():
            return
        self._require_other_thread()
        with self._starting:  # Callers that come meanwhile wait, and open it again.
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            if loop is not None and thread is not None:
                self._end(loop, thread)

    def __enter__(self) -> SyncClient:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Sync{self._client!r}"

    # Inside -------------------------------------------------------------------------------------

    async def _opened(self) -> None:
        await self._client.open()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            future = self._start(call)
        except BaseException:
            call.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()  # Ctrl+C must not leave the call behind.
            raise
        finally:
            self._waiting.discard(future)

    def _start(self, call: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._process != os.getpid():
            raise BadConfiguration("client: it was made before a fork; a child process needs a client of its own")
        self._require_other_thread()
        with self._starting:
            if self._loop is None:
                self._loop = new_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="everwork-client", daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._waiting.add(future)
            return future

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise BadConfiguration("client: this thread runs the event loop and cannot wait for itself; use Client")

    def _end(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """Close the client and stop its loop: no caller may be left waiting for it."""
        try:
            asyncio.run_coroutine_threadsafe(self._ended(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            for future in list(self._waiting):
                future.cancel()
            loop.close()

    async def _ended(self) -> None:
        try:
            await self._client.close()
        finally:
            remaining = asyncio.all_tasks() - {asyncio.current_task()}
            for task in remaining:
                task.cancel()
            if remaining:
                await asyncio.wait(remaining, timeout=CLOSE_SECONDS)
