"""Everwork for people who prefer functions: declare jobs, enqueue them, run them."""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from everwork.core.checks import job_key
from everwork.core.job import Event, Job, NewJob
from everwork.core.limits import CREATE_BATCH_MAX
from everwork.core.retry import RetryPolicy
from everwork.engines.base import Clock
from everwork.engines.codec import decode, encode_policy
from everwork.engines.open import open_engine
from everwork.engines.values import Created, Explanation
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.service.coalesce import Coalescer
from everwork.service.intake import new_job
from everwork.service.service import JobService
from everwork.workers.function import TIMEOUT_DEFAULT, JobFunction, JobKey
from everwork.workers.portal import Portal, Use, new_loop
from everwork.workers.runtime import Runtime

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SHUTDOWN_SECONDS = 30.0
OPTIONS = frozenset(inspect.signature(new_job).parameters) - {"type", "extra"}
"""What `enqueue` takes for itself; every other name is an argument of the handler."""


class Everwork:
    """An application: its engine by URL, its job functions, and the ways to use them.

    Every coroutine may be awaited in any event loop; `sync` has a twin of each for code without one.
    """

    def __init__(self, url: str, *, worker: str | None = None, clock: Clock | None = None) -> None:
        open_engine(url, clock=clock)  # A bad URL is told here, not at the first job.
        self._url = url
        self._clock = clock
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.functions: dict[str, JobFunction[..., Any]] = {}
        self.sync = SyncEverwork(self)
        self._portal: Portal | None = None
        self._guard = threading.Lock()
        self._creates: WeakKeyDictionary[asyncio.AbstractEventLoop, Coalescer[NewJob, Created]] = WeakKeyDictionary()
        self._runtime: Runtime | None = None
        self._is_working = False
        self._stops = 0

    # Declare ------------------------------------------------------------------------------------

    def job(
        self,
        type: str,
        *,
        retry: RetryPolicy | None = RetryPolicy(),  # noqa: B008 - a frozen value
        concurrency: int = 1,
        timeout: float = TIMEOUT_DEFAULT,
    ) -> Callable[[Callable[P, R]], JobFunction[P, R]]:
        """Declare a function as the handler of a type.

        `retry` None: a failure is final at once. `concurrency`: how many run at the same time in one process.
        `timeout`: seconds that one attempt may take. Plain functions run in threads.
        """

        def declare(function: Callable[P, R]) -> JobFunction[P, R]:
            if type in self.functions:
                raise BadConfiguration(f"type '{type}' has a handler already: {self.functions[type].__name__}")
            declared = JobFunction(
                function, type, retry=retry, concurrency=concurrency, timeout=timeout, enqueue=self.enqueue
            )
            self.functions[type] = declared
            return declared

        return declare

    # Enqueue ------------------------------------------------------------------------------------

    async def enqueue(self, type: str, /, *, tx: object = None, **arguments: Any) -> JobKey:
        """Create a job, durably, and answer its key.

        Arguments are the handler's, and these options: `delay` (seconds) or `run_at` (a datetime with time zone),
        `priority`, `tenant`, `dedupe_key`, `limit_key`, `correlation_id`, `expires_at`, `timeout`, `headers`,
        `max_attempts`, `retry`. `variables={...}` passes arguments whose names are options. With `tx`, a connection
        to the same store, the job is created inside the caller's own transaction.
        """
        return (await self._create([self.checked(type, arguments)], tx))[0]

    async def enqueue_many(self, jobs: Iterable[tuple[str, Mapping[str, Any]]], *, tx: object = None) -> list[JobKey]:
        """Create many jobs, all or none: pairs of a type and what `enqueue` takes by name."""
        return await self._create(self.checked_many(jobs), tx)

    def checked_many(self, jobs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[NewJob]:
        """Jobs ready to be created; the first that is wrong is named by its place."""
        checked = []
        for at, item in enumerate(jobs):
            try:
                type, arguments = item
                checked.append(self.checked(type, dict(arguments)))
            except InvalidInput as error:
                raise InvalidInput(f"jobs[{at}].{error.field}", error.problem) from None
            except (TypeError, ValueError):
                raise InvalidInput(f"jobs[{at}]", "must be a pair: a type and a mapping of its arguments") from None
        if len(checked) > CREATE_BATCH_MAX:
            raise InvalidInput("jobs", f"must be at most {CREATE_BATCH_MAX:,} in one call, not {len(checked):,}")
        return checked

    def checked(self, type: str, arguments: dict[str, Any]) -> NewJob:
        """One job ready to be created: options taken apart, arguments compared with the handler's."""
        options = {name: arguments.pop(name) for name in OPTIONS & arguments.keys()}
        variables = options.pop("variables", None)
        if variables is not None:
            if not isinstance(variables, Mapping):
                raise InvalidInput("variables", f"must be a JSON object, not {variables!r:.80}")
            arguments = {**variables, **arguments}
        function = self.functions.get(type)
        if function is not None:
            function.arguments.check_names(arguments)
        return new_job(type, arguments, **options)

    async def create(self, jobs: list[NewJob]) -> list[JobKey]:
        """Create checked jobs; callers at the same time share a hop to the engine's thread, and a commit."""
        loop = asyncio.get_running_loop()
        coalescer = self._creates.get(loop)
        if coalescer is None:
            self._creates[loop] = coalescer = Coalescer(
                lambda batch: self._call(lambda service: service.create(batch)), CREATE_BATCH_MAX
            )
        return [_job_key(created) for created in await coalescer.add(jobs)]

    async def _create(self, jobs: list[NewJob], tx: object) -> list[JobKey]:
        if tx is None:
            return await self.create(jobs)
        await self.open()
        return [_job_key(created) for created in await self.service.engine.create_in(tx, jobs)]

    # Ask ----------------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """A job as it stands."""
        return await self._call(lambda service: service.get(job_key(key)))

    async def history(self, key: int) -> list[Event]:
        """How a job's attempts ended, oldest first."""
        return await self._call(lambda service: service.history(key))

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        return await self._call(lambda service: service.explain(key))

    async def result(self, key: int, timeout: float | None = None) -> Any:
        """Wait for a job to finish and return its result.

        Raises `JobFailed` if it failed or was cancelled, `ResultTimeout` when `timeout` seconds have passed.
        """
        text = await self._call(lambda service: service.result(job_key(key), timeout))
        return None if text is None else decode(text)

    async def cancel(self, key: int, reason: str = "") -> None:
        """Cancel a job, pending or running."""
        await self._call(lambda service: service.cancel(key, reason))

    async def requeue(self, key: int) -> None:
        """Bring a dead letter back."""
        await self._call(lambda service: service.requeue(key))

    # Run ----------------------------------------------------------------------------------------

    def run(self, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> None:
        """Run the workers until SIGINT or SIGTERM; a second signal cancels what still runs."""
        runner = asyncio.Runner(loop_factory=new_loop)
        with runner:
            runner.run(self._run_with_signals(shutdown_timeout))

    async def work(self, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> None:
        """Run the workers in the running event loop until `stop()`."""
        if not self.functions:
            raise BadConfiguration("there is nothing to run: declare at least one function with @app.job")
        if self._is_working:
            raise BadConfiguration("the workers of this application run already")
        self._is_working, self._stops = True, 0
        try:
            await self.open()
            self._runtime = Runtime(self._opened, self.functions, self.worker)
            for _ in range(self._stops):
                self._runtime.stop()
            await self._runtime.run(shutdown_timeout)
        finally:
            self._is_working, self._runtime = False, None

    def stop(self) -> None:
        """Ask the workers to stop: finish what runs, begin nothing. The second call cancels what runs."""
        self._stops += 1
        if self._runtime is not None:
            self._runtime.stop()

    async def _run_with_signals(self, shutdown_timeout: float) -> None:
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM) if is_main else ():
            loop.add_signal_handler(number, self.stop)
        try:
            await self.work(shutdown_timeout=shutdown_timeout)
        finally:
            await self.close()

    # Life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the engine, if that has not happened yet."""
        if self._portal is None or not self._portal.is_open or self._portal.pid != os.getpid():
            await asyncio.wrap_future(self.opening())

    def opening(self) -> Future[None]:
        """Begin to open the engine; what goes wrong is told by the future, and the next call tries again."""
        with self._guard:
            if self._portal is None or self._portal.pid != os.getpid() or self._portal.is_broken:
                self._portal = Portal(self._make_service)
            return self._portal.open(self._prepare)

    async def close(self) -> None:
        """Stop the workers of this application, if they run, and close the engine. It can be opened again."""
        if self._runtime is not None:
            self._runtime.stop()
            await self._runtime.ended()
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        """Close the engine, from a thread other than the engine's."""
        with self._guard:
            portal, self._portal = self._portal, None
        if portal is not None and portal.pid == os.getpid():
            portal.close()

    async def __aenter__(self) -> Everwork:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def service(self) -> JobService:
        """The service while the application is open; it lives in the engine's event loop."""
        return self._opened.service

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The engine's event loop while the application is open."""
        return self._opened.loop

    @property
    def _opened(self) -> Portal:
        if self._portal is None or not self._portal.is_open:
            raise BadConfiguration("the application is not open: use `async with app`")
        return self._portal

    def _make_service(self) -> JobService:
        return JobService(open_engine(self._url, clock=self._clock), self.worker)

    async def _prepare(self, service: JobService) -> None:
        """Let every process know the policies that this application declares."""
        known = {info.type: info.policy for info in await service.engine.types()}
        for function in self.functions.values():
            policy = None if function.retry in (None, RetryPolicy()) else encode_policy(function.retry)
            if known.get(function.type) != policy:
                await service.engine.set_policy(function.type, policy)

    async def _call(self, use: Use[T]) -> T:
        await self.open()
        return await self._opened.call(use)


class SyncEverwork:
    """The twins of `Everwork`'s coroutines for code without an event loop: `app.sync.enqueue(...)`."""

    def __init__(self, app: Everwork) -> None:
        self._app = app

    def enqueue(self, type: str, /, *, tx: object = None, **arguments: Any) -> JobKey:
        """Create a job; see `Everwork.enqueue`."""
        return self._create([self._app.checked(type, arguments)], tx)[0]

    def enqueue_many(self, jobs: Iterable[tuple[str, Mapping[str, Any]]], *, tx: object = None) -> list[JobKey]:
        """Create many jobs, all or none; see `Everwork.enqueue_many`."""
        return self._create(self._app.checked_many(jobs), tx)

    def get(self, key: int) -> Job:
        """A job as it stands."""
        return self._wait(self._app.get(key))

    def history(self, key: int) -> list[Event]:
        """How a job's attempts ended, oldest first."""
        return self._wait(self._app.history(key))

    def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        return self._wait(self._app.explain(key))

    def result(self, key: int, timeout: float | None = None) -> Any:
        """Wait for a job to finish and return its result; see `Everwork.result`."""
        return self._wait(self._app.result(key, timeout))

    def cancel(self, key: int, reason: str = "") -> None:
        """Cancel a job, pending or running."""
        self._wait(self._app.cancel(key, reason))

    def requeue(self, key: int) -> None:
        """Bring a dead letter back."""
        self._wait(self._app.requeue(key))

    def open(self) -> None:
        """Open the engine, if that has not happened yet."""
        self._app.opening().result()

    def close(self) -> None:
        """Close the engine."""
        self._app.close_blocking()

    def __enter__(self) -> SyncEverwork:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create(self, jobs: list[NewJob], tx: object) -> list[JobKey]:
        self.open()
        if tx is None:
            return self._wait(self._app.create(jobs))
        # The user's connection belongs to this thread: the call runs here, and a synchronous driver never suspends.
        call = self._app.service.engine.create_in(tx, jobs)
        try:
            call.send(None)
        except StopIteration as done:
            return [_job_key(created) for created in done.value]
        call.close()
        raise InvalidInput("tx", "must belong to a synchronous driver here; await app.enqueue(..., tx=...) instead")

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        self.open()
        return asyncio.run_coroutine_threadsafe(call, self._app.loop).result()


def _job_key(created: Created) -> JobKey:
    key = JobKey(created.key)
    if created.deduplicated:
        key.deduplicated = True
    return key
