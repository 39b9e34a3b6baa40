"""Programs with workers that do nothing: `python -m benchmarks.noop manager|functions URL [PROCESSES]`."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from everwork import AbstractWorker, Everwork, Process, ProcessGroup, ProcessManager, WorkerSettings
from everwork.manager import stores

TYPE: Final = "noop"
MODULES: Final = "modules"
CONCURRENCY: Final = 100
_SIDES: Final = {"sqlite": "Sqlite", "postgresql": "Postgres", "redis": "Redis"}


class Noop(AbstractWorker):
    """Does nothing, many times."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title=TYPE, sources={TYPE}, concurrency=CONCURRENCY)

    async def __call__(self, n: int = 0) -> None:
        pass


class Modules(AbstractWorker):
    """Returns the modules that its process has imported."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title=MODULES, sources={MODULES})

    async def __call__(self) -> list[str]:
        return sorted({name.partition(".")[0] for name in sys.modules})


async def manage(url: str, processes: int) -> None:
    """Run a manager."""
    side = _SIDES[url.partition(":")[0]]
    manager = ProcessManager(
        uuid="bench",
        processes=[ProcessGroup(process=Process(workers=[Noop, Modules]), replicas=processes)],
        backend=getattr(stores, f"{side}Backend")(url),
        broker=getattr(stores, f"{side}Broker")(url),
        log_level="WARNING",
    )
    await manager.run()


def run_functions(url: str) -> None:
    """Run an application with a function."""
    app = Everwork(url)

    @app.job(TYPE, concurrency=CONCURRENCY)
    async def noop(n: int = 0) -> None:
        pass

    app.run()


if __name__ == "__main__":
    if sys.argv[1] == "manager":
        asyncio.run(manage(sys.argv[2], int(sys.argv[3])))
    else:
        run_functions(sys.argv[2])
