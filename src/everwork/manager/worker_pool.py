"""The workers of one process: made, started, and shut down. One that breaks down does not stop the others."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from everwork.aio.retrying import pauses
from everwork.app.settings import WorkerSettings
from everwork.core.texts import error_text
from everwork.manager.worker import AbstractWorker
from everwork.runtime.handler import Arguments, Handler, QueueKey
from everwork.runtime.middleware import MakeMiddleware, Middleware, require_middleware

RETRY_SECONDS_MIN: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
RUNNING_SECONDS: Final = 10.0
"""After so long a process counts as running also if a `startup()` in it has not ended."""
PROBLEM_CHARS_MAX: Final = 1_000

Add = Callable[[Handler], None]
Tell = Callable[[str, str | None], None]
"""Takes a worker's id and what is wrong with it; None: nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker's post in a process: its class, where it takes jobs from, its number; `is_final` as of its handler."""

    worker: type[AbstractWorker]
    places: tuple[QueueKey, ...]
    index: int
    id: str
    is_final: bool

    @classmethod
    def of(
        cls, settings: WorkerSettings, worker: type[AbstractWorker], places: tuple[QueueKey, ...], index: int
    ) -> WorkerSpec:
        """The post of a worker with these settings: without a retry policy, its first error is final."""
        return cls(worker=worker, places=places, index=index, id=settings.id, is_final=settings.retry is None)


class WorkerPool:
    """The workers of one process. It lives in the handlers' loop."""

    def __init__(self, posts: Sequence[WorkerSpec], log: Any, middleware: Sequence[MakeMiddleware] = ()) -> None:
        self._posts = posts
        self._to_make = middleware
        self._middleware: tuple[Middleware, ...] = ()
        self._log = log
        self._untried = len(posts)
        self._started: list[AbstractWorker] = []
        self.first_round = asyncio.Event()
        """Set when every worker has been tried once."""

    async def start(self, add: Add, tell: Tell) -> None:
        """Start all workers at once; each serves as soon as it is ready. One that fails is tried again, ever later."""
        await asyncio.gather(*(self._bring_up(post, add, tell) for post in self._posts))

    async def tried(self, seconds: float) -> None:
        """Wait until every worker has been tried once, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.first_round.wait(), seconds)

    async def shutdown(self) -> None:
        """Let every worker that was started clean up."""
        await asyncio.gather(*(self._shut_down(worker) for worker in self._started))

    async def _bring_up(self, post: WorkerSpec, add: Add, tell: Tell) -> None:
        problem = await self._try_aloud(post, add, tell)
        self._untried -= 1
        if not self._untried:
            self.first_round.set()
        tell(post.id, problem)
        for seconds in pauses(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX):
            if problem is None:
                return
            await asyncio.sleep(seconds)
            problem = await self._try_aloud(post, add, tell)
            tell(post.id, problem)

    async def _try_aloud(self, post: WorkerSpec, add: Add, tell: Tell) -> str | None:
        """Make and start a worker, and say so while that takes long."""
        complaining = asyncio.ensure_future(self._complain(post, tell))
        try:
            return await self._try(post, add)
        finally:
            complaining.cancel()

    async def _complain(self, post: WorkerSpec, tell: Tell) -> None:
        began, seconds = time.monotonic(), RUNNING_SECONDS
        while True:
            await asyncio.sleep(began + seconds - time.monotonic())
            problem = f"startup() has not ended for {seconds:g} s"
            self._log.warning("a worker does not start", worker=post.id, of=post.worker.__name__, problem=problem)
            tell(post.id, problem)
            seconds *= 2

    async def _try(self, post: WorkerSpec, add: Add) -> str | None:
        """Make and start a worker; what went wrong."""
        try:
            settings = post.worker._get_settings()  # noqa: SLF001 - the name is a promise to users
            around = self._made_middleware()
            worker = post.worker()
            await worker.startup()
            handler = handler_of(worker, settings, post, around)
        except BaseException as error:
            if _is_being_stopped(error):
                raise
            self._log.error("a worker cannot start", worker=post.id, of=post.worker.__name__, exc_info=error)
            return error_text(f"{type(error).__name__}: {error_text(error)}")[:PROBLEM_CHARS_MAX]
        self._started.append(worker)
        add(handler)
        return None

    def _made_middleware(self) -> tuple[Middleware, ...]:
        """Made once, for all workers; what cannot be made is tried again with the worker."""
        if len(self._middleware) < len(self._to_make):
            self._middleware = require_middleware("middleware", [make() for make in self._to_make])
        return self._middleware

    async def _shut_down(self, worker: AbstractWorker) -> None:
        try:
            await worker.shutdown()
        except BaseException as error:
            if _is_being_stopped(error):
                raise
            # Whoever waits for a task that it has just cancelled hears of that, and means no harm.
            if not isinstance(error, asyncio.CancelledError):
                self._log.error("a worker's shutdown failed", worker=type(worker).__name__, exc_info=error)


def _is_being_stopped(error: BaseException) -> bool:
    """Whether it is this very task that is to end, and not something that the worker itself had cancelled."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def handler_of(
    worker: AbstractWorker, settings: WorkerSettings, post: WorkerSpec, middleware: tuple[Middleware, ...] = ()
) -> Handler:
    """What the runtime must know of a worker."""
    return Handler(
        name=post.id,
        queues=post.places,
        function=worker.__call__,
        arguments=Arguments(worker.__call__),
        is_async=inspect.iscoroutinefunction(worker.__call__),
        is_final=post.is_final,
        concurrency=settings.concurrency,
        timeout=settings.execution_timeout,
        events_max=settings.event_settings.max_events_in_memory,
        settle_events_max=settings.event_settings.max_batch_size,
        index=post.index,
        middleware=middleware,
    )
