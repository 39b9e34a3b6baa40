"""What is wrong with a manager is told by its field, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everwork import (
    AbstractCronSchedule,
    AbstractWorker,
    Middleware,
    PostgresBackend,
    Process,
    ProcessGroup,
    ProcessManager,
    Reconnect,
    Recycle,
    RedisBroker,
    SqliteBackend,
    SqliteBroker,
    WorkerSettings,
)
from everwork.exceptions import BadConfiguration, InvalidInput
from tests.manager.running import LATE_S, ROOT
from tests.manager.workers import Echo

URL = "sqlite:///jobs.db"


class Twin(Echo):
    """Has the title of another."""


class Unsettled(AbstractWorker):
    """Cannot say what it is."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="")

    async def __call__(self) -> None:
        """Do nothing."""


class Mute(AbstractWorker):
    """Says something else than settings."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return "settings"  # type: ignore[return-value]

    async def __call__(self) -> None:
        """Do nothing."""


class Half(AbstractWorker):
    """Lacks its call."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="half")


class Generating(Echo):
    """Yields, where it should return."""

    async def __call__(self) -> Any:  # type: ignore[override]
        """Never end."""
        yield 1


class Hasty(Echo):
    """Starts up without waiting for anything."""

    def startup(self) -> None:  # type: ignore[override]
        """Do nothing."""


class BrokenSchedule(AbstractCronSchedule):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no calendar")

    def next_execution(self, cron_expression: str) -> Any:
        """Never asked."""


def _local() -> type[AbstractWorker]:
    class Local(Echo):
        """Nobody else can import it."""

    return Local


def a_manager(**changed: Any) -> ProcessManager:
    """A manager that could run, but for what is changed."""
    fields: dict[str, Any] = {
        "uuid": "one",
        "processes": [Process(workers=[Echo])],
        "backend": SqliteBackend(URL),
        "broker": SqliteBroker(URL),
        "log_format": None,
    }
    return ProcessManager(**(fields | changed))


def of(*workers: Any) -> dict[str, Any]:
    """One process with these workers."""
    return {"processes": [Process(workers=list(workers))]}


MEMORY = {"backend": SqliteBackend("sqlite:///:memory:"), "broker": SqliteBroker("sqlite:///:memory:")}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "title twice": (of(Echo, Twin), "workers Echo and Twin: both have the title 'echo'; titles must differ"),
    "title twice over processes": (
        {"processes": [Process(workers=[Echo]), ProcessGroup(process=Process(workers=[Twin]), replicas=2)]},
        "workers Echo and Twin: both have the title 'echo'",
    ),
    "no call": (of(Half), "worker Half: must define __call__"),
    "local class": (of(_local()), "worker Local: must be defined at the top level of a module"),
    "bad settings": (of(Unsettled), "worker Unsettled: _get_settings failed: title: "),
    "no settings": (of(Mute), "worker Mute: _get_settings must return a WorkerSettings, not 'settings'"),
    "a generator": (
        of(Generating),
        "worker Generating: __call__ must be an async function without yield",
    ),
    "plain startup": (of(Hasty), "worker Hasty: startup must be an async function"),
    "no processes": ({"processes": []}, "processes: must be a list with at least one Process"),
    "not a process": ({"processes": [Echo]}, r"processes\[0\]: must be a Process or a ProcessGroup, not "),
    "empty uuid": ({"uuid": ""}, "uuid: must have 1 to 255 characters, not 0"),
    "not a backend": ({"backend": URL}, "backend: must be a SqliteBackend, PostgresBackend or RedisBackend"),
    "sides mixed up": ({"broker": SqliteBackend(URL)}, "broker: must be a SqliteBroker, PostgresBroker or RedisBroker"),
    "other store": ({"broker": SqliteBroker("sqlite:///other.db")}, "backend and broker: must name the same store"),
    "other kind": ({"broker": RedisBroker("redis://localhost")}, "backend and broker: must name the same store"),
    "in memory": (MEMORY, "backend: an in-memory store cannot be shared by several processes"),
    "short lease": ({"lease": 0.5}, "lease: must be a number from 1 to "),
    "no lease": ({"lease": "long"}, "lease: must be a number"),
    "cron object": ({"cron_schedule": BrokenSchedule.__new__(BrokenSchedule)}, "cron_schedule: must be a subclass of"),
    "broken cron": ({"cron_schedule": BrokenSchedule}, r"cron_schedule: BrokenSchedule\(\) failed: .*no calendar"),
    "reconnect": ({"reconnect": 5}, "reconnect: must be a Reconnect, not 5"),
    "log format": ({"log_format": "xml"}, "log_format: must be one of console, json, not 'xml'"),
    "log level": ({"log_level": "loud"}, "log_level: must be one of .*, not 'LOUD'"),
    "start method": ({"start_method": "fork"}, "start_method: must be one of spawn, forkserver, not 'fork'"),
}


@pytest.mark.parametrize(("changed", "says"), WRONG.values(), ids=WRONG)
def test_a_manager_that_cannot_run_says_why(changed: dict[str, Any], says: str) -> None:
    with pytest.raises((BadConfiguration, InvalidInput), match=f"^{says}"):
        a_manager(**changed)


BAD: dict[str, tuple[Any, str]] = {
    "nobody": (lambda: Process(workers=[]), "workers"),
    "an instance": (lambda: Process(workers=[Echo()]), "workers"),  # type: ignore[list-item]
    "made already": (lambda: Process(workers=[Echo], middleware=[Middleware()]), "middleware"),  # type: ignore[list-item]
    "made nowhere": (
        lambda: Process(workers=[Echo], middleware=[lambda: Middleware.__new__(Middleware)]),
        "middleware",
    ),
    "no lifespan": (lambda: Process(workers=[Echo], lifespan=5), "lifespan"),  # type: ignore[arg-type]
    "a lifespan of an application": (lambda: Process(workers=[Echo], lifespan=isinstance), "lifespan"),
    "a lifespan from nowhere": (lambda: Process(workers=[Echo], lifespan=lambda: None), "lifespan"),
    "no breaker": (lambda: WorkerSettings(title="w", breaker=3), "breaker"),  # type: ignore[arg-type]
    "no policy": (lambda: WorkerSettings(title="w", policy={"max_running": 0}), "policy"),  # type: ignore[arg-type]
    "another class": (lambda: Process(workers=[Path]), "workers"),  # type: ignore[list-item]
    "twice": (lambda: Process(workers=[Echo, Echo]), "workers"),
    "no time": (lambda: Process(workers=[Echo], shutdown_timeout=0), "shutdown_timeout"),
    "no replicas": (lambda: ProcessGroup(process=Process(workers=[Echo]), replicas=0), "replicas"),
    "no delays": (lambda: Reconnect(delays=()), "delays"),
    "much jitter": (lambda: Reconnect(jitter=2), "jitter"),
    "no jobs": (lambda: Recycle(jobs=0), "jobs"),
    "no memory": (lambda: Recycle(memory=1), "memory"),
    "a typo": (lambda: Process(workers=[Echo], replica=2), "replica"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize(("declare", "field"), BAD.values(), ids=BAD)
def test_a_process_that_cannot_be_is_told_by_its_field(declare: Any, field: str) -> None:
    with pytest.raises(ValidationError) as told:
        declare()
    assert [error["loc"][0] for error in told.value.errors()] == [field]


@pytest.mark.parametrize("side", [SqliteBackend, PostgresBackend, RedisBroker])
def test_an_engine_that_is_unknown_is_named(side: type[SqliteBackend]) -> None:
    with pytest.raises(BadConfiguration, match=r"the URL must start with .*://, not with 'mysql'"):
        side("mysql://localhost/jobs")


@pytest.mark.parametrize(("usual", "chosen"), [("fork", "spawn"), ("forkserver", "forkserver")])
def test_a_program_that_forks_elsewhere_has_workers_that_are_not_forked(usual: str, chosen: str) -> None:
    program = (
        "import multiprocessing; from everwork.manager.manager import _context\n"
        f"multiprocessing.set_start_method('{usual}'); print(_context(None).get_start_method())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT, timeout=LATE_S
    )
    assert ended.stdout.strip() == chosen
