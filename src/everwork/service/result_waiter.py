"""Those who wait for jobs to finish: one look for all of them, whenever some job may have finished."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from everwork.aio.retrying import retry_while_unavailable
from everwork.core.job import Job
from everwork.core.leasing import WAIT_MS_MAX
from everwork.core.states import FINISHED_STATES
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, JobNotFound

LOOK_MAX: Final = 100
"""How many jobs are read at once, with all that they carry."""
REST_FACTOR: Final = 2.0
"""After a look, so many times as long nothing is looked at: waiting callers never take most of the engine's time."""
REST_SECONDS_MAX: Final = 1.0

Waiter = asyncio.Future[Job]


class ResultWaiter:
    """The callers of one process who wait for results. It lives in one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiters: dict[int, set[Waiter]] = {}
        self._is_late = False
        self._task: asyncio.Task[None] | None = None

    async def job(self, key: int, mark: int) -> Job:
        """The job, once it has finished; `mark` was taken before the caller looked for himself."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, set()).add(waiter)
        # What rang since the caller looked may have been his job, and the look that followed without it.
        self._is_late = self._is_late or self._engine.mark_finished() != mark
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="everwork-finishing")
        try:
            return await waiter
        finally:
            self._leave(key, waiter)

    async def close(self) -> None:
        """Tell everybody who waits that nothing will come."""
        self._fail(EngineUnavailable("the engine was closed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiters:
                mark = self._engine.mark_finished()
                self._is_late = False
                await self._look_and_rest()
                if not self._is_late and self._waiters:
                    with suppress(EngineUnavailable):  # Only a wake-up is lost.
                        await self._engine.wait_finished(WAIT_MS_MAX, since=mark)
        except Exception as error:  # noqa: BLE001 - it goes to those who wait
            self._fail(error)
        finally:
            self._task = None

    async def _look_and_rest(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await retry_while_unavailable(self._look, None)
        await asyncio.sleep(min(REST_FACTOR * (loop.time() - began), REST_SECONDS_MAX) if len(self._waiters) > 1 else 0)

    async def _look(self) -> None:
        keys = list(self._waiters)
        for start in range(0, len(keys), LOOK_MAX):
            batch = keys[start : start + LOOK_MAX]
            for key, job in zip(batch, await self._engine.get(batch), strict=True):
                self._tell(key, job)

    def _tell(self, key: int, job: Job | None) -> None:
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
