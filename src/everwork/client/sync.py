"""The client for synchronous code: every call blocks, and can be made from any thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from everwork.aio.loops import blocking, new_loop, warn_if_loop_runs
from everwork.client.client import LEASE_SECONDS, TIMEOUT_SECONDS, Client
from everwork.client.transport import closed
from everwork.codec.filters import JobFilters
from everwork.codec.job_values import PAGE_JOBS, Job, every_job_blocking
from everwork.exceptions import BadConfiguration, EverworkError

if TYPE_CHECKING:
    from everwork.client.stream_source import Handler
    from everwork.spool.settings import Spool

T = TypeVar("T")

CLOSE_SECONDS: Final = 15.0


class SyncClient:
    """`Client` for synchronous code: the same methods and arguments, but each call blocks. Any thread can use it."""

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
        self._client = Client(
            url,
            key=key,
            tls=tls,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            timeout=timeout,
            offline=offline,
        )
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self._stops: set[Callable[[], object]] = set()
        self._has_warned = False

    create = blocking(Client.create)
    create_many = blocking(Client.create_many)
    delivered = blocking(Client.delivered)

    activate = blocking(Client.activate)
    complete = blocking(Client.complete)
    fail = blocking(Client.fail)
    retry = blocking(Client.retry)
    reject = blocking(Client.reject)
    release = blocking(Client.release)
    throw = blocking(Client.throw)
    settle = blocking(Client.settle)
    extend = blocking(Client.extend)

    cancel = blocking(Client.cancel)
    requeue = blocking(Client.requeue)
    requeue_matching = blocking(Client.requeue_matching)
    set_retries = blocking(Client.set_retries)
    reschedule = blocking(Client.reschedule)
    run_now = blocking(Client.run_now)
    set_priority = blocking(Client.set_priority)
    delete = blocking(Client.delete)

    get = blocking(Client.get)
    history = blocking(Client.history)
    explain = blocking(Client.explain)
    stats = blocking(Client.stats)
    result = blocking(Client.result)
    page = blocking(Client.page)

    def list(self, **wanted: Unpack[JobFilters]) -> Iterator[Job]:
        """Iterate over all matching jobs, newest first; see `Client.list` for the filters."""
        return every_job_blocking(lambda cursor: self.page(cursor, limit=PAGE_JOBS, **wanted))

    # Lifecycle ----------------------------------------------------------------------------------

    def work(
        self,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int = 10,
        worker: str | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:
        """Run a worker until `stop` is called from another thread or from a handler; see `Client.work`."""

        async def working(client: Client) -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            request_stop = lambda: loop.call_soon_threadsafe(stop.set)  # noqa: E731 - discarded below
            self._stops.add(request_stop)
            try:
                await client.work(handlers, concurrency=concurrency, worker=worker, lease=lease, stop=stop)
            finally:
                self._stops.discard(request_stop)
                ended.set()

        ended = threading.Event()
        try:
            self._run(working)
        except EverworkError:
            raise
        except BaseException:
            ended.wait(CLOSE_SECONDS)  # After Ctrl+C, running jobs are released before the program exits.
            raise

    def stop(self) -> None:
        """Make `work` return: running jobs finish, and jobs that have not started are released."""
        for request_stop in list(self._stops):
            request_stop()

    def open(self) -> None:
        """Open the client if it is not open yet. Optional: any other call opens it too."""
        self._run(Client.open)

    def close(self) -> None:
        """Close the client. Calls from other threads raise `EngineUnavailable`. The client can be opened again."""
        if self._process != os.getpid():
            return
        self._require_other_thread()
        with self._starting:  # Callers that arrive during the close wait, and then open it again.
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

    def _run(self, use: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        self._has_warned = self._has_warned or warn_if_loop_runs("SyncClient", "Client(...)")
        future = self._start(use)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()  # Ctrl+C must not leave the call running.
            raise
        finally:
            self._waiting.discard(future)

    def _start(self, use: Callable[[Client], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        if self._process != os.getpid():
            raise BadConfiguration("client: it was created before a fork; create a new client in the child process")
        self._require_other_thread()
        with self._starting:
            if self._loop is None:
                self._loop = new_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="everwork-client", daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(use(self._client), self._loop)
            self._waiting.add(future)
            return future

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise BadConfiguration("client: this thread runs the event loop and cannot wait for itself; use Client")

    def _end(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """Close the client and stop its loop, without leaving a caller waiting for it."""
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
