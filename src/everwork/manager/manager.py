"""The process manager: runs worker classes in child processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal

from everwork.app.schedules import AbstractCronSchedule, CronSchedule, scheduled_triggers
from everwork.app.tick import TickResult, jobs_per_tick
from everwork.app.tick_route import TickRoute
from everwork.core import checks
from everwork.core.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration
from everwork.logs import LEVELS, configure, get_logger
from everwork.manager.process import Process, ProcessGroup, Reconnect
from everwork.manager.process_handle import Context
from everwork.manager.run import ManagerRun, ManagerSpec
from everwork.manager.signals import SIGNALS, StopRequests
from everwork.manager.stores import AbstractBackend, AbstractBroker
from everwork.manager.tick import ManagerTicks
from everwork.manager.validation import all_declared, flat, require_importable_program
from everwork.runtime.shutdown import SHUTDOWN_SECONDS
from everwork.service.service import JobService

log = get_logger("everwork")

StartMethod = Literal["spawn", "forkserver"]
START_METHODS: Final = ("spawn", "forkserver")


class ProcessManager:
    """Runs worker classes in child processes: starts and watches them, extends leases, fires triggers::

        manager = ProcessManager(
            uuid="shop",
            processes=[ProcessGroup(process=Process(workers=[Mailer]), replicas=2)],
            backend=SqliteBackend("sqlite:///jobs.db"),
            broker=SqliteBroker("sqlite:///jobs.db"),
        )
        if __name__ == "__main__":
            asyncio.run(manager.run())

    SIGINT or SIGTERM stops it: running jobs finish; a second signal cancels them. It needs Linux.

    Args:
        uuid: A name for this manager; any text.
        processes: The processes to run, each a `Process` or a `ProcessGroup`.
        backend: The registry of the store: `SqliteBackend`, `PostgresBackend` or `RedisBackend`.
        broker: The event publisher of the same store: `SqliteBroker`, `PostgresBroker` or `RedisBroker`.
        cron_schedule: The class that parses cron expressions.
        start_method: `"spawn"` or `"forkserver"`. Default: the one set in `multiprocessing`, else `"spawn"`.
        reconnect: How the manager itself retries an unavailable engine.
        lease: Seconds after which jobs of a failed machine are run by others. Default: 30.
        log_format: `"console"` or `"json"`; None leaves the configuration of logging to the program.
        log_level: The minimum level of log lines, such as `"INFO"`.

    Raises `BadConfiguration` if an argument is invalid.
    """

    def __init__(
        self,
        *,
        uuid: str,
        processes: Sequence[Process | ProcessGroup],
        backend: AbstractBackend,
        broker: AbstractBroker,
        cron_schedule: type[AbstractCronSchedule] = CronSchedule,
        start_method: StartMethod | None = None,
        reconnect: Reconnect | None = None,
        lease: float = LEASE_MS_DEFAULT / 1000,
        log_format: Literal["console", "json"] | None = "console",
        log_level: str = "INFO",
    ) -> None:
        self.uuid = checks.name("uuid", uuid)
        _require("start_method", start_method, (None, *START_METHODS))
        _require("log_format", log_format, (None, "console", "json"))
        _require("log_level", f"{log_level}".upper(), LEVELS)
        if not isinstance(reconnect, Reconnect | None):
            raise BadConfiguration(f"reconnect: must be a Reconnect, not {checks.shown(reconnect)}")
        self.log_format = log_format
        self.log_level = log_level
        self._url = _store_url(backend, broker)
        self._offline = broker.offline
        self._processes = flat(processes)
        self._workers = all_declared(self._processes)
        self._reconnect = reconnect or Reconnect()
        self._lease_ms = checks.milliseconds("lease", lease, 1, LEASE_MS_MAX / 1000)
        self._start_method = start_method
        schedule = _new_schedule(cron_schedule)
        settings = [one.settings for one in self._workers.values()]
        self._triggers = [trigger for one in settings for trigger in scheduled_triggers(one, schedule)]
        self._ticks = ManagerTicks(
            self.uuid,
            self._url,
            self._processes,
            self._workers,
            self._triggers,
            lease_ms=self._lease_ms,
            offline=self._offline,
        )
        self._running: tuple[asyncio.AbstractEventLoop, StopRequests] | None = None
        self._early_stops: int | None = 0
        """Calls of `stop()` before the first run, which apply to that run; None after it, when they have no effect."""

    async def run(self) -> None:
        """Run until SIGINT, SIGTERM or `stop()`."""
        require_importable_program(self._workers)
        context = _context(self._start_method)
        if self._running is not None:
            raise BadConfiguration("the manager is already running")
        if self.log_format is not None:
            configure(self.log_format, self.log_level)
        stops = StopRequests()
        self._running = (asyncio.get_running_loop(), stops)
        try:
            with SIGNALS.listening(self.stop):
                early, self._early_stops = self._early_stops, None
                for _ in range(early or 0):
                    stops.add()
                spec = self._spec(context)
                await ManagerRun(spec, JobService(open_engine(self._url), spec.name), log).run(stops)
        finally:
            self._running = None

    async def run_once(self, max_jobs: int | None = None, *, shutdown_timeout: float = SHUTDOWN_SECONDS) -> TickResult:
        """Run one tick in this process: do maintenance, fire due triggers, run up to `max_jobs` due jobs.

        Returns a summary. Each enabled worker is created and started, and shut down at the end. The default of
        `max_jobs` is the environment variable EVERWORK_JOBS_PER_TICK, else 10. `stop()` ends the tick early. Cancelling
        it releases running jobs.
        """
        jobs_max = jobs_per_tick(max_jobs)
        if self._running is not None:
            raise BadConfiguration("the manager is already running")
        return await self._ticks.run(jobs_max, shutdown_timeout)

    def tick_route(self, *, secret: str | None = None, public: bool = False, max_jobs: int | None = None) -> TickRoute:
        """Return an ASGI route that runs one tick per GET or POST; see `Everwork.tick_route`."""
        return TickRoute(self.run_once, secret=secret, public=public, max_jobs=max_jobs)

    def stop(self) -> None:
        """Stop the manager: running jobs finish, no others start. Can be called from any thread.

        A second call cancels running jobs, a third kills their processes.
        """
        running, is_ticking = self._running, self._ticks.stop()
        if running is not None:
            loop, stops = running
            with suppress(RuntimeError):  # The loop is closed: everything has stopped.
                loop.call_soon_threadsafe(stops.add)
        elif self._early_stops is not None and not is_ticking:
            self._early_stops += 1

    def _spec(self, context: Context) -> ManagerSpec:
        return ManagerSpec(
            uuid=self.uuid,
            name=f"{self.uuid}-{secrets.token_hex(3)}",
            url=self._url,
            processes=self._processes,
            workers=self._workers,
            triggers=self._triggers,
            context=context,
            reconnect=self._reconnect,
            lease_ms=self._lease_ms,
            log_format=self.log_format,
            log_level=self.log_level,
            offline=self._offline,
        )


def _require(field: str, value: object, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        words = ", ".join(word for word in allowed if word is not None)
        raise BadConfiguration(f"{field}: must be one of {words}, not {checks.shown(value)}")


def _store_url(backend: object, broker: object) -> str:
    """The URL of the store, which must be the same for the backend and the broker."""
    if not isinstance(backend, AbstractBackend):
        raise BadConfiguration(
            f"backend: must be a SqliteBackend, PostgresBackend or RedisBackend, not {checks.shown(backend)}"
        )
    if not isinstance(broker, AbstractBroker):
        raise BadConfiguration(
            f"broker: must be a SqliteBroker, PostgresBroker or RedisBroker, not {checks.shown(broker)}"
        )
    if backend.url != broker.url:
        raise BadConfiguration(
            "backend and broker: must name the same store, because jobs and registry change together, "
            f"not {backend!r} and {broker!r}"
        )
    if backend.url.partition("?")[0].endswith(":memory:"):
        raise BadConfiguration("backend: an in-memory store cannot be shared by several processes; use a file")
    return backend.url


def _new_schedule(cron_schedule: object) -> AbstractCronSchedule:
    if not (isinstance(cron_schedule, type) and issubclass(cron_schedule, AbstractCronSchedule)):
        raise BadConfiguration(
            f"cron_schedule: must be a subclass of AbstractCronSchedule, not {checks.shown(cron_schedule)}"
        )
    try:
        return cron_schedule()
    except Exception as error:
        raise BadConfiguration(
            f"cron_schedule: {cron_schedule.__name__}() failed: {type(error).__name__}: {error}"
        ) from error


def _context(method: StartMethod | None) -> Context:
    """How processes are started: never by fork, which copies locks and connections."""
    if sys.platform != "linux":
        raise BadConfiguration(
            f"the process manager needs Linux, not {sys.platform}; an Everwork application runs anywhere"
        )
    if multiprocessing.current_process().daemon:
        raise BadConfiguration("the process manager cannot run in a daemon process, which cannot have child processes")
    usual = multiprocessing.get_start_method(allow_none=True)
    chosen = method or (usual if usual in START_METHODS else "spawn")
    return multiprocessing.get_context(chosen)  # type: ignore[return-value]
