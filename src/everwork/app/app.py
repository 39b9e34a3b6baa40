"""The application: declare job functions, enqueue jobs, run workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, Unpack, cast
from weakref import WeakSet

from everwork.aio import forks
from everwork.app.engine_host import EngineHost
from everwork.app.enqueuer import Door, Enqueuer
from everwork.app.function import Declare, JobFunction
from everwork.app.handle import JobKey, loaded
from everwork.app.tick import TickResult
from everwork.app.workers import Workers
from everwork.codec.filters import JobFilters, filter_of
from everwork.codec.job_values import PAGE_JOBS, Job, JobPage, every_job, with_reason
from everwork.codec.json import decode, require_object
from everwork.codec.values import require_stored
from everwork.core import checks
from everwork.core.breaker import BreakerStatus, CircuitBreaker
from everwork.core.job import HistoryEntry
from everwork.core.limits import EXECUTION_SECONDS_DEFAULT, LEASE_MS_DEFAULT, LIST_LIMIT_DEFAULT
from everwork.core.policy import TypePolicy
from everwork.core.queries import CURSOR_MAX, Explanation
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy
from everwork.engines.contract import Clock
from everwork.exceptions import BadConfiguration, ResultTimeout
from everwork.runtime.dependencies.process import lifespan_plan
from everwork.runtime.middleware import Middleware, require_middleware
from everwork.runtime.runtime import WorkerName
from everwork.runtime.shutdown import SHUTDOWN_SECONDS, on_stop_signals, require_no_loop, run_loop
from everwork.service.service import JobService
from everwork.spool.settings import Spool
from everwork.spool.waiting import delivered_within

if TYPE_CHECKING:
    from everwork.app.settings import Cron, Interval
    from everwork.app.sync import SyncEverwork
    from everwork.app.tick_route import TickRoute
    from everwork.app.web_lifespan import Lifespan
    from everwork.server.http.mounted import Auth, MountedDashboard
    from everwork.service.jobs import Jobs

R = TypeVar("R")


_INSTEAD: Final = {
    **dict.fromkeys(("task", "actor", "periodic"), 'write @app.job("type")'),
    **dict.fromkeys(("send_task", "configure_task"), 'write await app.enqueue("type", ...)'),
    "conf": "options of jobs are arguments of @app.job and using(...)",
}
"""What the applications of other queues have."""


class Everwork(Enqueuer):
    """An application: an engine, given by its URL, and the job functions that run on it.

    Every coroutine can be awaited in any event loop; `sync` has a blocking version of each. The engine is opened on
    first use and runs in its own thread.

    `middleware` wraps every call of a handler, the first outermost. `offline`, the path of a local file or a `Spool`,
    enables offline mode: jobs and outcomes are kept there while the engine is unavailable and delivered once it is
    back. `lifespan`, a function with `@asynccontextmanager` that takes the application or no argument, is entered once
    per worker process before its first job, and exits after its last one; `ctx.state` is the value that it yields.
    """

    def __init__(
        self,
        url: str,
        *,
        worker: str | None = None,
        clock: Clock | None = None,
        middleware: Sequence[Middleware] = (),
        offline: str | Spool | None = None,
        lifespan: Callable[..., Any] | None = None,
    ) -> None:
        from everwork.app.sync import SyncEverwork  # noqa: PLC0415 - its methods are made from this class's

        self._name = WorkerName(worker)
        checked = require_middleware("middleware", middleware)
        self.functions: dict[str, JobFunction[..., Any, ..., Any]] = {}
        self._host = EngineHost(url, self._name, clock, self.functions, offline)
        self._workers = Workers(
            self._host,
            self._name,
            self.functions,
            checked,
            lease_ms=LEASE_MS_DEFAULT,
            lifespan=lifespan_plan(lifespan, self),
        )
        super().__init__(Door(self, self._host, self.functions), {})
        self._sync = SyncEverwork(self, self._door, self._workers.stop_and_wait_blocking)
        self._dashboards: WeakSet[MountedDashboard] = WeakSet()
        forks.reset_in_child(self, Everwork._reset_after_fork)

    @property
    def sync(self) -> SyncEverwork:
        """A blocking version of every call, for synchronous code."""
        return self._sync

    if not TYPE_CHECKING:  # Type checkers would accept every name.

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(f"the application has no attribute {name!r}{hint}", name=name, obj=self)

    # Declare ------------------------------------------------------------------------------------

    def job(
        self,
        type: str,
        *,
        retry: RetryPolicy | None = DEFAULT_POLICY,
        concurrency: int = 1,
        timeout: float = EXECUTION_SECONDS_DEFAULT,
        cron: str | Cron | Interval | None = None,
        cron_arguments: Mapping[str, Any] | None = None,
        is_catchup: bool = True,
        breaker: CircuitBreaker | None = None,
        policy: TypePolicy | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Declare:
        """Declare a function as the handler of a type.

        The function's parameters are the job's arguments. `enqueue` validates them by their annotations and stores them
        as JSON, and the handler receives the same values. Plain functions run in threads.

        `retry`: None turns retries off; if it is not given, the policy stored for the type applies. `concurrency`: how
        many jobs run concurrently in one process. `timeout`: time limit of one attempt, in seconds. `cron`: a cron
        expression, a `Cron` or an `Interval`; each time point creates one job with `cron_arguments`, no matter how many
        workers run. Missed time points are caught up, unless `is_catchup` is False. `breaker`: pauses the type after a
        series of failures. `policy`: limits, retention, error rules. `middleware`: wraps each call, inside the
        application's middleware.

        docs/reference/defaults.md lists all defaults.
        """
        if not isinstance(type, str):
            name = getattr(type, "__name__", "send")
            raise BadConfiguration(f'@app.job must name the type of its jobs: write @app.job("{name}")')

        def declare(function: Callable[..., Any]) -> JobFunction[..., Any, ..., Any]:
            declared = JobFunction[..., Any, ..., Any](
                function, type, self._door, retry=retry, concurrency=concurrency, timeout=timeout, cron=cron,
                cron_arguments=cron_arguments, is_catchup=is_catchup, breaker=breaker, policy=policy,
                middleware=middleware,
            )  # fmt: skip
            if type in self.functions:
                raise BadConfiguration(f"type '{type}' already has a handler: {self.functions[type].__name__}")
            self.functions[type] = declared
            return declared

        return cast("Declare", declare)  # It keeps the types of the function.

    # Query --------------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """A job in its current state."""
        return Job.of(await self._on_job(key, lambda jobs, key: jobs.get(key)))

    async def history(self, key: int) -> list[HistoryEntry]:
        """How a job's attempts ended, oldest first."""
        return await self._on_job(key, lambda jobs, key: jobs.history(key))

    async def explain(self, key: int) -> Explanation:
        """Why a job is not running."""
        return await self._on_job(key, lambda jobs, key: jobs.explain(key))

    async def breaker(self, type: str) -> BreakerStatus:
        """The current circuit breaker of a type, shared by all workers."""
        return await self._host.call(lambda service: service.breaker(type))

    async def result(self, key: int, timeout: float | None = None) -> Any:
        """Wait for a job to finish and return its result.

        For a handle, the result is converted to the function's return type. Raises `JobFailed` if the job failed,
        `JobCancelled` if it was cancelled, and `ResultTimeout`, which says why it has not finished, after `timeout`
        seconds.
        """
        return loaded(key, await self._stored_result(key, timeout))

    async def _stored_result(self, key: int, timeout: float | None) -> Any:
        """The result as plain JSON values."""
        if isinstance(key, JobKey) and key.is_spooled:
            began = time.monotonic()
            key = await self.delivered(key, timeout)
            timeout = None if timeout is None else max(0.0, timeout - (time.monotonic() - began))
        try:
            text = await self._host.call(lambda service: service.result(key, timeout))
        except ResultTimeout as error:
            raise await with_reason(error, self.explain(key), self.get(key)) from None
        value = None if text is None else decode(text)
        require_stored(key, value)
        return value

    async def delivered(self, key: int, timeout: float | None = None) -> JobKey:
        """Wait until a spooled job is delivered, and return its key in the engine.

        Raises `NotDelivered` if the engine refused it, and `ResultTimeout` after `timeout` seconds. The key of any
        other job is returned unchanged.
        """
        if not isinstance(key, JobKey) or not key.is_spooled:
            return JobKey(checks.job_key(key))
        spool_id = key.spool_id
        return JobKey.of(await delivered_within(timeout, spool_id, lambda: self._host.delivered(spool_id)))

    async def cancel(self, key: int, reason: str = "") -> None:
        """Cancel a job, pending or running."""
        await self._on_job(key, lambda jobs, key: jobs.cancel(key, reason))

    async def requeue(self, key: int, arguments: Mapping[str, Any] | None = None) -> None:
        """Requeue a dead letter, or a job waiting for a retry: due now, with attempts reset to 0.

        `arguments` replace all of the job's own; they are checked as by `enqueue` if its function is declared here.
        """
        given = None if arguments is None else self._checked((await self.get(key)).type, arguments)
        await self._requeue(key, given)

    def _checked(self, type: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for a job of this type, validated, as plain JSON values."""
        given = {**require_object("arguments", arguments)}
        function = self.functions.get(type)
        return given if function is None else function.arguments.dump(given)

    async def _requeue(self, key: int, arguments: dict[str, Any] | None) -> None:
        await self._on_job(key, lambda jobs, key: jobs.requeue(key, variables=arguments))

    async def run_now(self, key: int, *, reset: bool = False) -> None:
        """Run a pending job now; `reset` also resets attempts and last error, and accepts dead letters."""
        await self._on_job(key, lambda jobs, key: jobs.run_now(key, reset=reset))

    def list(self, **wanted: Unpack[JobFilters]) -> AsyncIterator[Job]:
        """Every matching job, newest first; see `page`."""
        return every_job(lambda cursor: self.page(cursor, limit=PAGE_JOBS, **wanted))

    async def page(
        self, cursor: int | None = None, /, *, limit: int = LIST_LIMIT_DEFAULT, **wanted: Unpack[JobFilters]
    ) -> JobPage:
        """One page of matching jobs, and the cursor of the next.

        Filters: `type`, `state` (one or several), `tenants`, `worker`, `group`, `correlation_id`, `dedupe_key`,
        `created_after`, `created_before`, `error_text` (in any case), `variables_text` (a part of the variables as
        compact JSON, case-sensitive), `due`. `order`: `newest`; `due`, which lists pending jobs, the earliest `run_at`
        first; `failed`, which lists failed jobs, the latest failure first.
        """
        from everwork.service.jobs import in_process  # noqa: PLC0415 - most applications only create jobs

        filter_ = filter_of(wanted)
        if cursor is not None:
            checks.whole_number("cursor", cursor, 1, CURSOR_MAX)
        found = await self._host.call(lambda service: in_process(service).find(filter_, limit, cursor))
        return JobPage([Job.of(one) for one in found.jobs], found.next)

    async def _on_job(self, key: int, use: Callable[[Jobs, int], Coroutine[Any, Any, R]]) -> R:
        from everwork.service.jobs import in_process  # noqa: PLC0415 - most applications only create jobs

        if isinstance(key, JobKey) and key.is_spooled:
            key = (await self._host.delivered(key.spool_id, wait=False)).key
        plain = int(key) if isinstance(key, JobKey) else key
        return await self._host.call(lambda service: use(in_process(service), plain))

    # Run ----------------------------------------------------------------------------------------

    def run(self, *, types: Iterable[str] | None = None, shutdown_timeout: float = SHUTDOWN_SECONDS) -> None:
        """Run the workers until SIGINT or SIGTERM; a second signal cancels running jobs.

        `types`: run only functions of these types; patterns such as `mail-*` are allowed.
        """
        require_no_loop("app.run()", "await app.work()")
        run_loop(self._run_with_signals(self.work(types=types, shutdown_timeout=shutdown_timeout)))

    def work(
        self, *, types: Iterable[str] | None = None, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Coroutine[Any, Any, None]:
        """Run the workers in the current event loop until `stop()`; `types` as in `run`."""
        return self._workers.work(shutdown_timeout, types)

    def run_once(
        self, max_jobs: int | None = None, *, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Coroutine[Any, Any, TickResult]:
        """Run a tick: sweep, fire due triggers, run up to `max_jobs` due jobs, and return what was done.

        The default is EVERWORK_JOBS_PER_TICK, or 10. The types take equal shares. `stop()` ends it early; cancelling it
        hands running jobs back.
        """
        return self._workers.tick(max_jobs, shutdown_timeout)

    def tick_route(self, *, secret: str | None = None, public: bool = False, max_jobs: int | None = None) -> TickRoute:
        """An ASGI route that runs a tick per GET or POST, for the cron service of a serverless host.

        Callers need `Authorization: Bearer SECRET`; `secret` is CRON_SECRET of the environment if not given.
        `public=True` allows calls without a secret.
        """
        from everwork.app.tick_route import TickRoute  # noqa: PLC0415 - few applications have one

        return TickRoute(self.run_once, self.close, secret=secret, public=public, max_jobs=max_jobs)

    # Within a web application ---------------------------------------------------------------------

    def lifespan(
        self, *, work: bool = False, inner: Lifespan | None = None, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Lifespan:
        """A `lifespan` for FastAPI and Starlette: opens this application at startup and closes it at shutdown.

        `work=True` also runs the workers in the web process; if they crash, the crash is logged and they are restarted.
        `inner`: your own lifespan, entered after this application is opened and exited before it is closed, so that
        handlers can use what it opens.
        """
        from everwork.app.web_lifespan import make_lifespan, working  # noqa: PLC0415 - for web applications only

        def workers() -> AbstractAsyncContextManager[None]:
            # On a stage, the test runs the jobs.
            return nullcontext() if self._host.is_borrowed else working(self._workers, shutdown_timeout)

        async def opened() -> None:
            await self.open()
            for dashboard in () if self._host.is_borrowed else tuple(self._dashboards):
                await dashboard.open()

        return make_lifespan(opened, self.close, workers if work else None, inner)

    def dashboard(
        self,
        *,
        auth: Auth | None = None,
        public: bool = False,
        masked_variables: Sequence[str] = (),
        api: bool = False,
    ) -> MountedDashboard:
        """The dashboard as an ASGI application: `api.mount("/jobs", app.dashboard(auth=...))`.

        `auth` is a function or coroutine function that takes the request and returns an `Access`, None (no access), or
        a response such as a redirect. Without `auth`, visitors log in with an API key of the store. `public=True` gives
        everyone access. `masked_variables`: names of values to mask, in addition to the default ones. `api=True` also
        serves the REST API there, for the same callers: `/jobs/api/v1/...`, described by `/jobs/docs`.
        """
        from everwork.server.http.mounted import MountedDashboard  # noqa: PLC0415 - for web applications only

        made = MountedDashboard(self._host, self.close, auth=auth, public=public, masked=masked_variables, api=api)
        self._dashboards.add(made)
        return made

    def stop(self) -> None:
        """Stop the workers: running jobs finish, no new ones start. A second call cancels running jobs."""
        self._workers.stop()

    async def _run_with_signals(self, work: Coroutine[Any, Any, None]) -> None:
        on_stop_signals(self.stop)
        try:
            await work
        finally:
            await self.close()

    # Test ---------------------------------------------------------------------------------------

    def overrides(self, replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> AbstractContextManager[None]:
        """Replace dependencies inside a `with` block: `with app.overrides({get_session: lambda: fake}):`."""
        return self._workers.overrides.replaced(replacements)

    # Open and close ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the engine, if it is not open yet."""
        await self._host.open_in_loop()

    async def close(self) -> None:
        """Stop the workers, if they are running, and close the engine. It can be opened again."""
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
        """The name under which jobs are leased; by default unique for each process, including forks."""
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
