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
from everwork.codec.json import require_object
from everwork.codec.values import stored_result
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
"""Names from other job queues, and what to write instead."""


class Everwork(Enqueuer):
    """An application: the store that holds its jobs, and the functions that run them::

        app = Everwork("sqlite:///jobs.db")

        @app.job("email-send")
        async def send(to: str) -> None: ...

        await send.enqueue(to="ada@example.com")  # in your program
        app.run()  # in the worker

    Every coroutine can be awaited in any event loop; `app.sync` has a blocking version of each. The store is opened on
    first use. Its engine runs in its own thread, so a handler that blocks does not stop heartbeats.

    Args:
        url: The store: `sqlite:///jobs.db`, `postgresql://...` or `redis://...`.
        worker: The worker's name in the history of its jobs. Default: unique to each process.
        clock: The engine's clock, for tests.
        middleware: `Middleware` around every handler call; the first is the outermost.
        offline: The path of a local file, or a `Spool`. Enables offline mode: new jobs and outcomes are kept in the
            file while the engine is unavailable, and delivered when it is back.
        lifespan: A function with `@asynccontextmanager` that takes the application or no argument. Each worker process
            enters it before its first job and exits it after its last one; handlers get the value it yields as
            `ctx.state`.

    Raises `BadConfiguration` if an argument is invalid.
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
        from everwork.app.sync import SyncEverwork  # noqa: PLC0415 - its methods are built from this class

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
        """Decorator that makes a function the handler of a job type::

            @app.job("report-build", timeout=600, cron="0 6 * * *")
            def build(day: str = "today") -> str: ...

        The function's parameters are the job's arguments. `enqueue` validates them against the annotations and stores
        them as JSON; the handler receives the same values. Plain `def` functions run in threads.

        Args:
            type: The name of the job type, such as `email-send`.
            retry: A `RetryPolicy`, or None for no retries. Default: the policy stored for the type, else 5 attempts.
            concurrency: Maximum number of these jobs running concurrently in one process.
            timeout: Time limit of one attempt, in seconds. Default: 180.
            cron: A cron expression, a `Cron` or an `Interval`. Each scheduled time creates one job, no matter how many
                workers are running.
            cron_arguments: The arguments of scheduled jobs.
            is_catchup: Whether scheduled times missed while no worker was running are caught up.
            breaker: A `CircuitBreaker` that pauses the type after a number of consecutive failures.
            policy: A `TypePolicy`: limits, retention, error rules.
            middleware: `Middleware` for this function only, inside the application's.

        Returns a `JobFunction`. Raises `BadConfiguration` or `InvalidInput` if the declaration is invalid.
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

        return cast("Declare", declare)  # `Declare` keeps the function's own types.

    # Query --------------------------------------------------------------------------------------

    async def get(self, key: int) -> Job:
        """Return a job in its current state. Raises `JobNotFound` if it does not exist."""
        return Job.of(await self._on_job(key, lambda jobs, key: jobs.get(key)))

    async def history(self, key: int) -> list[HistoryEntry]:
        """Return how each attempt of a job ended, oldest first."""
        return await self._on_job(key, lambda jobs, key: jobs.history(key))

    async def explain(self, key: int) -> Explanation:
        """Explain why a job is not running."""
        return await self._on_job(key, lambda jobs, key: jobs.explain(key))

    async def breaker(self, type: str) -> BreakerStatus:
        """Return the circuit breaker status of a type. All workers share one breaker per type."""
        return await self._host.call(lambda service: service.breaker(type))

    async def result(self, key: int, timeout: float | None = None) -> Any:
        """Wait for a job to finish and return its result.

        Given a handle, the result is converted to the return type of its function; given a plain key, it is returned as
        JSON values. `timeout` is in seconds; None waits without limit.

        Raises `JobFailed` if the job failed, `JobCancelled` if it was cancelled, `ResultNotStored` if its result could
        not be stored, and `ResultTimeout` after `timeout` seconds, with the reason why the job has not finished.
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
        return stored_result(key, text)

    async def delivered(self, key: int, timeout: float | None = None) -> JobKey:
        """Wait until a spooled job (see `offline`) is delivered, and return its key in the engine.

        The key of any other job is returned unchanged. Raises `NotDelivered` if the engine refused the job, and
        `ResultTimeout` after `timeout` seconds.
        """
        if not isinstance(key, JobKey) or not key.is_spooled:
            return JobKey(checks.job_key(key))
        spool_id = key.spool_id
        return JobKey.of(await delivered_within(timeout, spool_id, lambda: self._host.delivered(spool_id)))

    async def cancel(self, key: int, reason: str = "") -> None:
        """Cancel a pending or running job.

        A running async handler is cancelled; a handler in a thread can check `JobContext.cancelled`.
        """
        await self._on_job(key, lambda jobs, key: jobs.cancel(key, reason))

    async def requeue(self, key: int, arguments: Mapping[str, Any] | None = None) -> None:
        """Requeue a dead letter or a job waiting for a retry: it is due immediately, with attempts reset to 0.

        `arguments` replace all of the job's arguments. They are validated if its function is declared in this
        application.
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
        """Make a pending job due now. `reset` also resets attempts and the last error, and accepts dead letters."""
        await self._on_job(key, lambda jobs, key: jobs.run_now(key, reset=reset))

    def list(self, **wanted: Unpack[JobFilters]) -> AsyncIterator[Job]:
        """Iterate over all matching jobs, newest first: `async for job in app.list(state="failed")`.

        The filters are those of `page`.
        """
        return every_job(lambda cursor: self.page(cursor, limit=PAGE_JOBS, **wanted))

    async def page(
        self, cursor: int | None = None, /, *, limit: int = LIST_LIMIT_DEFAULT, **wanted: Unpack[JobFilters]
    ) -> JobPage:
        """Return one page of matching jobs, and the cursor of the next page.

        Filters: `type`, `state` (one or several), `tenants`, `worker`, `group`, `correlation_id`, `dedupe_key`,
        `created_after`, `created_before`, `error_text` (ignores case), `variables_text` (a text in the variables as
        compact JSON, case-sensitive), `due`. `order` is `newest` (default), `due` (pending jobs, earliest `run_at`
        first) or `failed` (failed jobs, latest failure first).
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
        """Run the workers until SIGINT or SIGTERM. A second signal cancels running jobs.

        Args:
            types: Run only these job types; patterns such as `mail-*` are allowed. Default: all.
            shutdown_timeout: Seconds that running jobs get to finish before they are cancelled and released.
        """
        require_no_loop("app.run()", "await app.work()")
        run_loop(self._run_with_signals(self.work(types=types, shutdown_timeout=shutdown_timeout)))

    def work(
        self, *, types: Iterable[str] | None = None, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Coroutine[Any, Any, None]:
        """Run the workers in the current event loop until `stop()` is called. The arguments are those of `run`."""
        return self._workers.work(shutdown_timeout, types)

    def run_once(
        self, max_jobs: int | None = None, *, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Coroutine[Any, Any, TickResult]:
        """Run one tick: do maintenance, fire due triggers, run up to `max_jobs` due jobs, and return a summary.

        For cron jobs and serverless functions instead of a permanent worker. The default of `max_jobs` is the
        environment variable EVERWORK_JOBS_PER_TICK, else 10; types get equal shares. `stop()` ends the tick early.
        Cancelling it releases running jobs.
        """
        return self._workers.tick(max_jobs, shutdown_timeout)

    def tick_route(self, *, secret: str | None = None, public: bool = False, max_jobs: int | None = None) -> TickRoute:
        """Return an ASGI route that runs one tick per GET or POST, for the cron service of a serverless host.

        Callers must send `Authorization: Bearer SECRET`. `secret` defaults to the environment variable CRON_SECRET;
        `public=True` allows calls without a secret.
        """
        from everwork.app.tick_route import TickRoute  # noqa: PLC0415 - few applications have one

        return TickRoute(self.run_once, self.close, secret=secret, public=public, max_jobs=max_jobs)

    # Within a web application ---------------------------------------------------------------------

    def lifespan(
        self, *, work: bool = False, inner: Lifespan | None = None, shutdown_timeout: float = SHUTDOWN_SECONDS
    ) -> Lifespan:
        """Return a `lifespan` for FastAPI or Starlette: `FastAPI(lifespan=app.lifespan())`.

        It opens this application at startup and closes it at shutdown. `work=True` also runs the workers in the web
        process; if they crash, the crash is logged and they are restarted. `inner` is your own lifespan: it is entered
        after this application opens and exited before it closes, so handlers can use the resources it opens.
        """
        from everwork.app.web_lifespan import make_lifespan, working  # noqa: PLC0415 - for web applications only

        def workers() -> AbstractAsyncContextManager[None]:
            # In a rehearsal, the test runs the jobs.
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
        """Return the dashboard as an ASGI application: `api.mount("/jobs", app.dashboard(auth=...))`.

        Args:
            auth: A function, async or not, that takes the request and returns an `Access`, None (access denied), or a
                response such as a redirect. Without `auth`, users log in with an API key of the store.
            public: Whether everyone has access without logging in.
            masked_variables: Names of variables to mask, in addition to the default ones.
            api: Whether to serve the REST API as well: `/jobs/api/v1/...`, documented at `/jobs/docs`.
        """
        from everwork.server.http.mounted import MountedDashboard  # noqa: PLC0415 - for web applications only

        made = MountedDashboard(self._host, self.close, auth=auth, public=public, masked=masked_variables, api=api)
        self._dashboards.add(made)
        return made

    def stop(self) -> None:
        """Stop the workers: running jobs finish, no new jobs start. A second call cancels running jobs."""
        self._workers.stop()

    async def _run_with_signals(self, work: Coroutine[Any, Any, None]) -> None:
        on_stop_signals(self.stop)
        try:
            await work
        finally:
            await self.close()

    # Test ---------------------------------------------------------------------------------------

    def overrides(self, replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> AbstractContextManager[None]:
        """Replace dependencies in tests: `with app.overrides({get_session: lambda: fake}): ...`."""
        return self._workers.overrides.replaced(replacements)

    # Open and close ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store, unless it is open already. Optional: any other call opens it, too."""
        await self._host.open_in_loop()

    async def close(self) -> None:
        """Stop the workers, if they are running, and close the store. It can be opened again."""
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
        """The name of this worker, shown in the history of its jobs; by default unique to each process."""
        return self._name.text

    @property
    def service(self) -> JobService:
        """The service behind this application while it is open; it runs in the engine's event loop (`loop`)."""
        return self._host.portal.service

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The engine's event loop while the application is open."""
        return self._host.portal.loop

    def _reset_after_fork(self) -> object:
        """In a forked child: nothing is open and no workers run. Returns the objects that belong to the parent."""
        return self._workers.reset_after_fork(), self._host.reset_after_fork()
