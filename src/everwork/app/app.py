"""Everwork for people who prefer functions: declare jobs, enqueue them, run them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from everwork.aio import forks
from everwork.app.engine_host import EngineHost
from everwork.app.function import JobFunction, JobKey
from everwork.app.tick import TickResult
from everwork.app.workers import Workers
from everwork.codec.json import decode, require_object
from everwork.codec.new_job import new_job
from everwork.core import checks
from everwork.core.breaker import BreakerStatus, CircuitBreaker
from everwork.core.job import HistoryEntry, Job, NewJob
from everwork.core.limits import EXECUTION_SECONDS_DEFAULT, LEASE_MS_DEFAULT
from everwork.core.policy import TypePolicy
from everwork.core.queries import Explanation
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy
from everwork.engines.contract import Clock
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.middleware import Middleware, require_middleware
from everwork.runtime.runtime import WorkerName
from everwork.runtime.shutdown import SHUTDOWN_SECONDS, on_stop_signals, run_loop
from everwork.service.policies import attempts_in_code
from everwork.service.service import JobService
from everwork.spool.settings import Spool
from everwork.spool.waiting import delivered_within

if TYPE_CHECKING:
    from everwork.app.settings import Cron, Interval
    from everwork.app.tick_route import TickRoute
    from everwork.service.jobs import Jobs

P = ParamSpec("P")
R = TypeVar("R")

OPTIONS = frozenset(inspect.signature(new_job).parameters) - {"type", "extra"}
"""The options of `enqueue`; every other name is an argument of the handler."""


class Everwork:
    """An application: its engine by URL, its job functions, and the ways to use them.

    Every coroutine may be awaited in any event loop; `sync` has a blocking version of each for code without one. The
    engine is opened at the first use and runs in a thread of its own. `middleware` wraps every call of a handler, the
    first outermost. `offline`, the path of a local file or a `Spool`, turns offline mode on: jobs and outcomes are kept
    there while the engine is unavailable, and delivered when it is back.
    """

    def __init__(
        self,
        url: str,
        *,
        worker: str | None = None,
        clock: Clock | None = None,
        middleware: Sequence[Middleware] = (),
        offline: str | Spool | None = None,
    ) -> None:
        from everwork.app.sync import SyncEverwork  # noqa: PLC0415 - its methods are made from this class's

        self._name = WorkerName(worker)
        checked = require_middleware("middleware", middleware)
        self.functions: dict[str, JobFunction[..., Any]] = {}
        self._host = EngineHost(url, self._name, clock, self.functions, offline)
        self._workers = Workers(self._host, self._name, self.functions, checked, lease_ms=LEASE_MS_DEFAULT)
        self.sync = SyncEverwork(self, self._host, self._checked_many, self._workers.stop_and_wait_blocking)
        forks.reset_in_child(self, Everwork._reset_after_fork)

    # Declare ------------------------------------------------------------------------------------

    def job(
        self,
        type: str,
        *,
        retry: RetryPolicy | None = DEFAULT_POLICY,
        concurrency: int = 1,
        timeout: float = EXECUTION_SECONDS_DEFAULT,
        cron: str | Cron | Interval | None = None,
        breaker: CircuitBreaker | None = None,
        policy: TypePolicy | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[Callable[P, R]], JobFunction[P, R]]:
        """Declare a function as the handler of a type.

        `retry` None: a failure is final at once; not given: the policy stored for the type holds. `concurrency`: how
        many run at the same time in one process. `timeout`: seconds that one attempt may take. `cron`: a cron
        expression, a `Cron` or an `Interval`; while the workers of any process run, each of its time points creates
        one job. `breaker`: a row of failures stops the whole type for a while. `policy`: limits, retention and the
        rest. `middleware`: wraps each call, inside of the application's. Plain functions run in
        threads.
        """

        def declare(function: Callable[P, R]) -> JobFunction[P, R]:
            declared = JobFunction(
                function, type, retry=retry, concurrency=concurrency, timeout=timeout, enqueue=self.enqueue, cron=cron,
                breaker=breaker, policy=policy, middleware=middleware,
            )  # fmt: skip
            if type in self.functions:
                raise BadConfiguration(f"type '{type}' has a handler already: {self.functions[type].__name__}")
            self.functions[type] = declared
            return declared

        return declare

    # Enqueue ------------------------------------------------------------------------------------

    async def enqueue(self, type: str, /, *, tx: object = None, **arguments: Any) -> JobKey:
        """Create a job, durably, and return its key.

        Arguments are the handler's, and these options: `delay` (seconds) or `run_at` (a datetime with time zone),
        `priority`, `tenant`, `dedupe_key`, `limit_key`, `correlation_id`, `expires_at`, `timeout`, `headers`,
        `max_attempts`, `retry`. `variables={...}` passes arguments whose names are options. With `tx`, a connection
        to the same store, the job is created inside the caller's own transaction.
        """
        return (await self._create([self._checked(type, arguments)], tx))[0]

    async def enqueue_many(self, jobs: Iterable[tuple[str, Mapping[str, Any]]], *, tx: object = None) -> list[JobKey]:
        """Create many jobs, all or none: pairs of a type and what `enqueue` takes by name."""
        return await self._create(self._checked_many(jobs), tx)

    async def _create(self, jobs: list[NewJob], tx: object) -> list[JobKey]:
        created = await (self._host.create(jobs) if tx is None else self._host.create_in(tx, jobs))
        return [JobKey.of(one) for one in created]

    def _checked_many(self, jobs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[NewJob]:
        """Jobs ready to be created; the first that is wrong is named by its index."""
        checked = []
        if not isinstance(jobs, Iterable):
            raise InvalidInput("jobs", f"must be pairs of a type and its arguments, not {checks.shown(jobs)}")
        for at, item in enumerate(jobs):
            try:
                type, arguments = item
                checked.append(self._checked(type, dict(arguments)))
            except InvalidInput as error:
                raise InvalidInput(f"jobs[{at}].{error.field}", error.problem) from None
            except (TypeError, ValueError):
                raise InvalidInput(f"jobs[{at}]", "must be a pair: a type and a mapping of its arguments") from None
        return checked

    def _checked(self, type: object, arguments: dict[str, Any]) -> NewJob:
        """One job ready to be created: options taken apart, arguments compared with the handler's."""
        options = {name: arguments.pop(name) for name in OPTIONS & arguments.keys()}
        if "variables" in options:
            arguments = {**require_object("variables", options.pop("variables")), **arguments}
        function = self.functions.get(type) if isinstance(type, str) else None
        if function is not None:
            function.arguments.check_names(arguments)
            attempts = attempts_in_code(function.type, function.policy_said)
            if attempts is not None and "retry" not in options:
                # The declared policy holds immediately, also before it is stored.
                options.setdefault("max_attempts", attempts)
        return new_job(type, arguments, **options)  # type: ignore[arg-type]

    # Query --------------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """A job in its current state."""
        return await self._on_job(key, lambda jobs, key: jobs.get(key))

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended, oldest first."""
        return await self._on_job(key, lambda jobs, key: jobs.history(key))

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        return await self._on_job(key, lambda jobs, key: jobs.explain(key))

    async def breaker(self, type: str) -> BreakerStatus:
        """The circuit breaker of a type, as it is for the whole fleet now."""
        return await self._host.call(lambda service: service.breaker(type))

    async def result(self, key: int, timeout: float | None = None) -> Any:
        """Wait for a job to finish and return its result.

        Raises `JobFailed` if it failed or was cancelled, `ResultTimeout` when `timeout` seconds have passed.
        """
        if isinstance(key, JobKey) and key.is_spooled:
            began = time.monotonic()
            key = await self.delivered(key, timeout)
            timeout = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        text = await self._host.call(lambda service: service.result(key, timeout))
        return None if text is None else decode(text)

    async def delivered(self, key: int, timeout: float | None = None) -> JobKey:
        """Wait until a spooled job is delivered, and return its key in the engine.

        Raises `NotDelivered` if the engine has refused it, `ResultTimeout` when `timeout` seconds have passed. The key
        of any other job is returned as it is.
        """
        if not isinstance(key, JobKey) or not key.is_spooled:
            return JobKey(checks.job_key(key))
        spool_id = key.spool_id
        return JobKey.of(await delivered_within(timeout, spool_id, lambda: self._host.delivered(spool_id)))

    async def cancel(self, key: int, reason: str = "") -> None:
        """Cancel a job, pending or running."""
        await self._on_job(key, lambda jobs, key: jobs.cancel(key, reason))

    async def requeue(self, key: int) -> None:
        """Requeue a dead letter, or a job waiting for a retry: due now, with attempts reset to 0."""
        await self._on_job(key, lambda jobs, key: jobs.requeue(key))

    async def run_now(self, key: int, *, reset: bool = False) -> None:
        """Run a pending job now; `reset` also resets attempts and last error, and accepts dead letters."""
        await self._on_job(key, lambda jobs, key: jobs.run_now(key, reset=reset))

    async def _on_job(self, key: int, use: Callable[[Jobs, int], Coroutine[Any, Any, R]]) -> R:
        from everwork.service.jobs import in_process  # noqa: PLC0415 - most applications only create jobs

        if isinstance(key, JobKey) and key.is_spooled:
            key = (await self._host.delivered(key.spool_id, wait=False)).key
        return await self._host.call(lambda service: use(in_process(service), key))

    # Run ----------------------------------------------------------------------------------------

    def run(self, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> None:
        """Run the workers until SIGINT or SIGTERM; a second signal cancels what still runs."""
        run_loop(self._run_with_signals(self.work(shutdown_timeout=shutdown_timeout)))

    def work(self, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> Coroutine[Any, Any, None]:
        """Run the workers in the running event loop until `stop()`."""
        return self._workers.work(shutdown_timeout)

    def run_once(
        self, max_jobs: int | None = None, *, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Coroutine[Any, Any, TickResult]:
        """A tick: sweep, fire due triggers, run up to `max_jobs` jobs that are due, and return what was done.

        The default is EVERWORK_JOBS_PER_TICK, or 10. The types take equal shares. `stop()` lets it end
        early; cancelling it releases what runs.
        """
        return self._workers.tick(max_jobs, shutdown_timeout)

    def tick_route(self, *, secret: str | None = None, public: bool = False, max_jobs: int | None = None) -> TickRoute:
        """An ASGI route that runs a tick per GET or POST, for the cron service of a serverless host.

        Callers need `Authorization: Bearer SECRET`; `secret` is CRON_SECRET of the environment if not given.
        `public=True` allows calls without a secret.
        """
        from everwork.app.tick_route import TickRoute  # noqa: PLC0415 - few applications have one

        return TickRoute(self.run_once, self.close, secret=secret, public=public, max_jobs=max_jobs)

    def stop(self) -> None:
        """Stop the workers: finish what runs, begin nothing. The second call cancels what runs."""
        self._workers.stop()

    async def _run_with_signals(self, work: Coroutine[Any, Any, None]) -> None:
        on_stop_signals(self.stop)
        try:
            await work
        finally:
            await self.close()

    # Open and close ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the engine, if that has not happened yet."""
        await self._host.open_in_loop()

    async def close(self) -> None:
        """Stop the workers of this application, if they run, and close the engine. It can be opened again."""
        await self._workers.stop_and_wait()
        await asyncio.to_thread(self._host.close)

    async def __aenter__(self) -> Everwork:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def worker(self) -> str:
        """The name under which jobs are leased; unless one was given, every process has its own, forks too."""
        return self._name.text

    @property
    def service(self) -> JobService:
        """The service while the application is open; it runs in the engine's event loop."""
        return self._host.portal.service

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The engine's event loop while the application is open."""
        return self._host.portal.loop

    def _reset_after_fork(self) -> object:
        """In a forked child: nothing is open and no workers run. Returns what belongs to the parent."""
        return self._workers.reset_after_fork(), self._host.reset_after_fork()
