"""A manager in a process of its own: `python -m tests.manager.program URL SETTINGS-AS-JSON WORKER[,WORKER]...`.

Each argument after the settings is one process with these workers in it; one that is not in `workers` is named with its
module, as in `fragile.Fragile`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from importlib import import_module
from typing import Any

from everwork import AbstractWorker, Process, ProcessManager, Reconnect, Recycle
from everwork.manager import stores
from everwork.manager.stores import AbstractBackend, AbstractBroker
from everwork.testing.injection import FailTypes
from tests.manager.lifespans import lifespan


def sides_of(url: str, offline: str | None = None) -> tuple[AbstractBackend, AbstractBroker]:
    """The backend and the broker of a store."""
    name = {"sqlite": "Sqlite", "postgresql": "Postgres"}.get(url.partition(":")[0], "Redis")
    return getattr(stores, f"{name}Backend")(url), getattr(stores, f"{name}Broker")(url, offline=offline)


def worker_of(name: str) -> type[AbstractWorker]:
    """A worker class by its name, or by its module and name."""
    module, _, name = name.rpartition(".")
    found: type[AbstractWorker] = getattr(import_module(f"tests.manager.{module or 'workers'}"), name)
    return found


def manager_of(url: str, settings: dict[str, Any], workers: list[str]) -> ProcessManager:
    """A manager with one process for each list of workers."""
    backend, broker = sides_of(url, settings.get("offline"))
    recycle = Recycle(jobs=int(settings["recycle"])) if "recycle" in settings else Recycle()
    processes = [
        Process(
            workers=[worker_of(name) for name in names.split(",")],
            shutdown_timeout=settings.get("shutdown", 10),
            recycle=recycle,
            reconnect=Reconnect(delays=(0.1,), give_up_after=settings.get("give_up")),
            middleware=[partial(FailTypes, settings["fail"])] if "fail" in settings else [],
            lifespan=lifespan if "lifespan" in settings else None,
        )
        for names in workers
    ]
    lease = settings.get("lease", 30)
    method = settings.get("start_method")
    logs = {name: settings[name] for name in ("log_format", "log_level") if name in settings}
    return ProcessManager(
        uuid="test", processes=processes, backend=backend, broker=broker, lease=lease, start_method=method, **logs
    )


if __name__ == "__main__":
    asyncio.run(manager_of(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]).run())
