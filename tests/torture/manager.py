"""A manager of the torture, with processes of its own: `python -m tests.torture.manager`, see `process.Life`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Final

from everwork import Process, ProcessGroup, ProcessManager, Reconnect
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.manager import manager
from tests.manager.program import sides_of
from tests.torture import clocks, crew, mutants
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched
from tests.torture.process import Life, die_with_the_controller, read_life

PROCESSES: Final = 2
SHUTDOWN_SECONDS: Final = 2.0


def manage(life: Life, history: HistoryWriter) -> None:
    """Run until SIGTERM asks for a stop, or SIGKILL does not ask."""
    mutants.apply(life.mutant, life.url)

    def open_watched(url: str, **options: Any) -> Engine:
        return watched(open_engine(url, **options), history)

    vars(manager)["open_engine"] = open_watched
    backend, broker = sides_of(life.url)
    reconnect = Reconnect(delays=(0.02, 0.05, 0.1, 0.2))
    process = Process(workers=crew.WORKERS, shutdown_timeout=SHUTDOWN_SECONDS, reconnect=reconnect)
    running = ProcessManager(
        uuid=life.name,
        processes=[ProcessGroup(process=process, replicas=PROCESSES)],
        backend=backend,
        broker=broker,
        reconnect=reconnect,
        lease=crew.LEASE_MS / 1000,
        log_format="json",
    )
    asyncio.run(running.run())


def main() -> None:
    """Live one life."""
    die_with_the_controller()
    clocks.follow()
    life = read_life(sys.argv[1:])
    os.environ[crew.LIFE] = json.dumps(sys.argv[1:])
    history = HistoryWriter(life.file(life.life))
    try:
        manage(life, history)
    except BaseException as error:
        history.broken(error)
        raise


if __name__ == "__main__":
    main()
