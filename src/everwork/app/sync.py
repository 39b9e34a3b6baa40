"""The sync facade of an application: its coroutines as blocking calls, for code without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from everwork.aio.loops import blocking
from everwork.app.app import Everwork
from everwork.app.engine_host import EngineHost
from everwork.app.function import JobKey
from everwork.app.tick import TickResult
from everwork.core.job import NewJob
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.shutdown import SHUTDOWN_SECONDS, run_loop

R = TypeVar("R")

Check = Callable[[Iterable[tuple[str, Mapping[str, Any]]]], list[NewJob]]


class SyncEverwork:
    """`app.sync`: each call blocks until it is done. It may be used from any thread."""

    def __init__(self, app: Everwork, host: EngineHost, check: Check, stop_workers: Callable[[], None]) -> None:
        self._app = app
        self._host = host
        self._check = check
        self._stop_workers = stop_workers

    def enqueue(self, type: str, /, *, tx: object = None, **arguments: Any) -> JobKey:
        """Create a job; see `Everwork.enqueue`."""
        try:
            return self.enqueue_many([(type, arguments)], tx=tx)[0]
        except InvalidInput as error:
            raise InvalidInput(error.field.removeprefix("jobs[0]."), error.problem) from None

    def enqueue_many(self, jobs: Iterable[tuple[str, Mapping[str, Any]]], *, tx: object = None) -> list[JobKey]:
        """Create many jobs, all or none; see `Everwork.enqueue_many`."""
        checked = self._check(jobs)
        host = self._host
        created = host.create_blocking(checked) if tx is None else host.create_in_blocking(tx, checked)
        return [JobKey.of(one) for one in created]

    get = blocking(Everwork.get)
    history = blocking(Everwork.history)
    explain = blocking(Everwork.explain)
    breaker = blocking(Everwork.breaker)
    result = blocking(Everwork.result)
    delivered = blocking(Everwork.delivered)
    cancel = blocking(Everwork.cancel)
    requeue = blocking(Everwork.requeue)
    run_now = blocking(Everwork.run_now)

    def run_once(self, max_jobs: int | None = None, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> TickResult:
        """A tick, in an event loop of its own in this thread; see `Everwork.run_once`."""
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise BadConfiguration("run_once: an event loop runs in this thread; use `await app.run_once()` there")
        return run_loop(self._app.run_once(max_jobs, shutdown_timeout=shutdown_timeout))

    def open(self) -> None:
        """Open the engine, if that has not happened yet."""
        self._host.open_blocking()

    def close(self) -> None:
        """Stop the workers of this application, if they run, and close the engine."""
        self._stop_workers()
        self._host.close()

    def __enter__(self) -> SyncEverwork:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, use: Callable[[Everwork], Coroutine[Any, Any, R]]) -> R:
        return self._host.run(lambda _: use(self._app))
