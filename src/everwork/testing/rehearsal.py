"""Rehearsing: an application is put onto a fresh store, with a clock that stands still, for the time of a block."""

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
from everwork.testing.harness import Harness, WorkersUnderTest, parts_of
from everwork.testing.stage import Stage, SyncStage


def rehearse(
    *what: Everwork | type[AbstractWorker],
    start: datetime = START,
    middleware: Sequence[Middleware] = (),
    file: Path | None = None,
) -> Rehearsal:
    """Put an application, worker classes, or both on a stage: `async with rehearse(app) as stage`, or `with`.

    Whatever URL the application was declared with, its jobs are in memory meanwhile. `start`: where the clock begins.
    `middleware` stands around every call, outermost. `file`: a SQLite file to use instead of memory, for handlers that
    complete or create jobs inside transactions of their own.
    """
    return Rehearsal(what, start=start, middleware=middleware, file=file)


class Rehearsal:
    """A rehearsal that has not begun; it can be held once."""

    def __init__(
        self, what: Sequence[Any], *, start: datetime, middleware: Sequence[Middleware], file: Path | None
    ) -> None:
        app, workers = parts_of(what)
        self._backstage = Harness(
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

    # For those who cannot hold it in a block ------------------------------------------------------

    def begin(self) -> Stage:
        """A stage for coroutines."""
        self._backstage.open(self._file)
        return Stage(self._backstage)

    def begin_sync(self) -> SyncStage:
        """A stage for those without an event loop."""
        self._backstage.open(self._file)
        self._sync_stage = SyncStage(self._backstage)
        return self._sync_stage

    async def shutdown(self) -> None:
        """Let workers clean up, in the event loop in which they were started."""
        await self._backstage.cast.shutdown()

    def end(self, *, has_passed: bool) -> None:
        """Let workers clean up that nobody has let, and leave the stage; faults that are left over fail what passed."""
        try:
            if self._sync_stage is not None:
                self._sync_stage.close()
            elif self._backstage.cast.is_started:
                asyncio.run(self.shutdown())
        finally:
            self._backstage.close()
        if has_passed:
            self._backstage.orders.require_none_left()
