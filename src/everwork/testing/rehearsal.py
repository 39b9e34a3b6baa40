"""Rehearsals: an application on a fresh store, with a virtual clock, for the duration of a `with` block."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from everwork.app.app import Everwork
from everwork.manager.worker import AbstractWorker
from everwork.runtime.middleware import Middleware, require_middleware
from everwork.testing.clock import START, VirtualClock
from everwork.testing.harness import Harness, WorkersUnderTest, app_and_workers
from everwork.testing.stage import Stage, SyncStage


def rehearse(
    *what: Everwork | type[AbstractWorker],
    start: datetime = START,
    middleware: Sequence[Middleware] = (),
    file: Path | None = None,
) -> Rehearsal:
    """Test jobs without a database or waiting: move an application to an in-memory store with a virtual clock::

        async with rehearse(app) as stage:  # or `with`, for a blocking `SyncStage`
            await send.enqueue(to="ada@example.com")
            await stage.drain()
            stage.assert_enqueued("email-send", to="ada@example.com")

    Inside the block, all jobs of the application are on the stage, whatever its URL. Transactions (`tx=`) can be on any
    database; the jobs created in them appear at the commit.

    Args:
        what: An application, worker classes, or both.
        start: When the virtual clock starts, a datetime with time zone.
        middleware: `Middleware` to run around every call, outside the application's own middleware.
        file: A SQLite file to use instead of memory, for code that reads the jobs with SQL.

    Returns a context manager, async and sync, that can be used once.
    """
    return Rehearsal(what, start=start, middleware=middleware, file=file)


class Rehearsal:
    """A context manager, async and sync, that can be used once; `begin` and `end` are for fixtures."""

    def __init__(
        self, what: Sequence[Any], *, start: datetime, middleware: Sequence[Middleware], file: Path | None
    ) -> None:
        app, workers = app_and_workers(what)
        self._harness = Harness(
            app, WorkersUnderTest(workers), VirtualClock(start), require_middleware("middleware", middleware)
        )
        self._file = file
        self._sync_stage: SyncStage | None = None

    async def __aenter__(self) -> Stage:
        return self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.shutdown()
        finally:
            self.end(has_passed=error is None)

    def __enter__(self) -> SyncStage:
        return self.begin_sync()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(has_passed=error is None)

    # Without a `with` block, for fixtures -----------------------------------------------------------

    def begin(self) -> Stage:
        """Return a stage for async tests."""
        self._harness.open(self._file)
        return Stage(self._harness)

    def begin_sync(self) -> SyncStage:
        """Return a stage for tests without an event loop."""
        self._harness.open(self._file)
        self._sync_stage = SyncStage(self._harness)
        return self._sync_stage

    async def shutdown(self) -> None:
        """Shut down the workers and exit the lifespan, in the event loop in which they were started."""
        await self._harness.shutdown()

    def end(self, *, has_passed: bool) -> None:
        """Shut down running workers and close the store. Fails a passing test if a requested fault never happened."""
        try:
            if self._sync_stage is not None:
                self._sync_stage.close()
            elif self._harness.is_started:
                asyncio.run(self.shutdown())
        finally:
            self._harness.close()
        if has_passed:
            self._harness.faults.require_none_left()
