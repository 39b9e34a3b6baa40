"""The synchronous facade of an application: its coroutines as blocking calls, for code without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar, Unpack

from everwork.aio.loops import blocking
from everwork.app.app import Everwork
from everwork.app.enqueuer import Door, SyncEnqueuer
from everwork.app.handle import loaded
from everwork.app.tick import TickResult
from everwork.codec.filters import JobFilters
from everwork.codec.job_values import PAGE_JOBS, Job, every_job_blocking
from everwork.runtime.shutdown import SHUTDOWN_SECONDS, require_no_loop, run_loop

R = TypeVar("R")


class SyncEverwork(SyncEnqueuer):
    """`app.sync`: `Everwork` for synchronous code. Each call blocks until it is done; any thread can use it."""

    def __init__(self, app: Everwork, door: Door, stop_workers: Callable[[], None]) -> None:
        super().__init__(door, {})
        self._app = app
        self._host = door.host
        self._stop_workers = stop_workers

    get = blocking(Everwork.get)
    page = blocking(Everwork.page)
    history = blocking(Everwork.history)
    explain = blocking(Everwork.explain)
    breaker = blocking(Everwork.breaker)
    delivered = blocking(Everwork.delivered)
    cancel = blocking(Everwork.cancel)
    run_now = blocking(Everwork.run_now)

    # Validators are user code: they run in the caller's thread, not in the engine's.

    def result(self, key: int, timeout: float | None = None) -> Any:
        """Wait for a job to finish and return its result; see `Everwork.result`."""
        return loaded(key, self._run(lambda app: app._stored_result(key, timeout)))  # noqa: SLF001 - its own facade

    def requeue(self, key: int, arguments: Mapping[str, Any] | None = None) -> None:
        """Requeue a dead letter, or a job waiting for a retry; see `Everwork.requeue`."""
        given = None if arguments is None else self._app._checked(self.get(key).type, arguments)  # noqa: SLF001
        self._run(lambda app: app._requeue(key, given))  # noqa: SLF001

    def list(self, **wanted: Unpack[JobFilters]) -> Iterator[Job]:
        """Iterate over all matching jobs, newest first; see `Everwork.page` for the filters."""
        return every_job_blocking(lambda cursor: self.page(cursor, limit=PAGE_JOBS, **wanted))

    def run_once(self, max_jobs: int | None = None, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> TickResult:
        """Run one tick in a new event loop in this thread; see `Everwork.run_once`."""
        require_no_loop("app.sync.run_once()", "await app.run_once()")
        return run_loop(self._app.run_once(max_jobs, shutdown_timeout=shutdown_timeout))

    def open(self) -> None:
        """Open the store, unless it is open already."""
        self._host.open_blocking()

    def close(self) -> None:
        """Stop the workers of this application, if they are running, and close the store."""
        self._stop_workers()
        self._host.close()

    def __enter__(self) -> SyncEverwork:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, use: Callable[[Everwork], Coroutine[Any, Any, R]]) -> R:
        return self._host.run(lambda _: use(self._app))
