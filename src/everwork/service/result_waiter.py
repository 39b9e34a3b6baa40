"""Waits for results: one read for all waiting callers, whenever a job may have finished."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from everwork.aio.retrying import retry_while_unavailable
from everwork.core.job import StoredJob
from everwork.core.leasing import WAIT_MS_MAX
from everwork.core.states import FINISHED_STATES
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, JobNotFound

READ_MAX: Final = 100
"""The maximum number of jobs per read, with their variables."""
READ_FIRST: Final = 10
"""How many jobs are read first, when their size is not known yet."""
READ_BYTES_MAX: Final = 4 * 1_048_576
"""How many bytes one read returns, judged by the largest job of the read before."""
PAUSE_FACTOR: Final = 2.0
"""The pause after a read, as a multiple of its duration, so that waiting never takes most of the engine's time."""
PAUSE_SECONDS_MAX: Final = 1.0

Waiter = asyncio.Future[StoredJob]


class ResultWaiter:
    """The callers in this process that wait for results. Bound to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[int, set[Waiter]] = {}
        self._is_late = False
        self._read_max = READ_FIRST
        self._task: asyncio.Task[None] | None = None

    async def job(self, key: int, mark: int) -> StoredJob:
        """Wait until a job has finished and return it; `mark` was taken before the caller read the job."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, set()).add(waiter)
        # A wake-up since the caller's read may have been for its job, and the read that followed did not include it.
        self._is_late = self._is_late or self._engine.mark_finished() != mark
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="everwork-finishing")
        try:
            return await waiter
        finally:
            self._leave(key, waiter)

    async def close(self) -> None:
        """Fail all waiting callers."""
        self._fail(EngineUnavailable("the engine was closed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiters:
                mark = self._engine.mark_finished()
                self._is_late = False
                await self._read_and_pause()
                if not self._is_late and self._waiters:
                    with suppress(EngineUnavailable):  # At worst, a wake-up is missed.
                        await self._engine.wait_finished(WAIT_MS_MAX, since=mark)
        except Exception as error:  # noqa: BLE001 - it goes to the callers
            self._fail(error)
        finally:
            self._task = None

    async def _read_and_pause(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await retry_while_unavailable(self._read, None)
        await asyncio.sleep(
            min(PAUSE_FACTOR * (loop.time() - began), PAUSE_SECONDS_MAX) if len(self._waiters) > 1 else 0
        )

    async def _read(self) -> None:
        keys = list(self._waiters)
        while keys:
            batch, keys = keys[: self._read_max], keys[self._read_max :]
            largest = 0
            for key, job in zip(batch, await self._engine.get(batch), strict=True):
                self._answer(key, job)
                largest = max(largest, 0 if job is None else len(job.variables) + len(job.result or ""))
            self._read_max = max(1, min(READ_MAX, READ_BYTES_MAX // (largest + 1)))

    def _answer(self, key: int, job: StoredJob | None) -> None:
        if job is not None and job.state not in FINISHED_STATES:
            return
        for waiter in self._waiters.pop(key, ()):
            if waiter.done():
                continue
            if job is None:
                waiter.set_exception(JobNotFound(key))
            else:
                waiter.set_result(job)

    def _leave(self, key: int, waiter: Waiter) -> None:
        waiters = self._waiters.get(key)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[key]

    def _fail(self, error: Exception) -> None:
        waiting, self._waiters = self._waiters, {}
        for waiters in waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
