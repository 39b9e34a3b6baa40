"""A stop under load, by hand: `python -m tests.manager.load URL [PROCESSES] [JOBS]`.

Jobs run in several processes; the manager gets two SIGTERMs, and nothing may be lost or doubled. Then a second manager
is killed with all of them in flight, and a third one ends each of them, once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from everwork import State
from everwork.app.settings import id_of, source_of
from tests.app.waiting import until
from tests.manager.running import Manager, Outside, Said

SECONDS_MAX = 120.0
TYPE = source_of(id_of("holder"))


class Load:
    """One run over an empty store."""

    def __init__(self, url: str, folder: Path, processes: int) -> None:
        self._url = url
        self._said = Said(folder / "said")
        self._gate = folder / "gate"
        self._processes = processes
        self._outside = Outside(url)

    async def run(self, jobs: int) -> None:
        """Stop, kill, and finish."""
        await self._outside.service.open()
        kwargs = [{"gate": str(self._gate)}] * jobs
        keys = [key for at in range(0, jobs, 500) for key in await self._outside.push_many(TYPE, kwargs[at : at + 500])]
        await self._stop(keys)
        await self._kill(keys)
        await self._finish(keys)
        await self._outside.service.close()

    async def _stop(self, keys: list[int]) -> None:
        manager = await self._start(keys, 1)
        began = time.monotonic()
        await manager.stop_twice()
        assert await manager.exit_code() == 0, manager.log()
        print(f"SIGTERM twice: the manager was gone after {time.monotonic() - began:.2f} s")
        await self._all_are_back(keys, began, {(0, 1)})

    async def _kill(self, keys: list[int]) -> None:
        manager = await self._start(keys, 2)
        began = time.monotonic()
        os.kill(manager.pid, signal.SIGKILL)
        await until(lambda: not manager.members(), SECONDS_MAX)
        print(f"SIGKILL: its processes were gone after {time.monotonic() - began:.2f} s")
        await self._all_are_back(keys, began, {(0, 2)})
        manager.end()

    async def _finish(self, keys: list[int]) -> None:
        self._gate.touch()
        began = time.monotonic()
        manager = Manager(self._url, self._said, ["Holder"] * self._processes, {})
        await self._outside.all_are(State.COMPLETED, keys, SECONDS_MAX)
        print(f"{len(keys):,} jobs were completed in {time.monotonic() - began:.2f} s")
        ended = Counter(int(line[2]) for line in self._said.lines("end"))
        assert ended == Counter(keys), "a job was lost or doubled"
        manager.send(signal.SIGTERM)
        assert await manager.exit_code() == 0, manager.log()

    async def _start(self, keys: list[int], attempt: int) -> Manager:
        """Start a manager, and wait until everything is in flight."""
        began = time.monotonic()
        manager = Manager(self._url, self._said, ["Holder"] * self._processes, {})
        await until(lambda: self._begun(attempt) == set(keys), SECONDS_MAX)
        print(
            f"{len(keys):,} jobs in {self._processes} processes were in flight after {time.monotonic() - began:.2f} s"
        )
        return manager

    def _begun(self, attempt: int) -> set[int]:
        return {int(line[2]) for line in self._said.lines("begin") if line[3] == str(attempt)}

    async def _all_are_back(self, keys: Iterable[int], began: float, numbers: set[tuple[int, int]]) -> None:
        jobs = await self._outside.all_are(State.PENDING, keys, SECONDS_MAX)
        print(f"all of them were pending again after {time.monotonic() - began:.2f} s")
        assert {(job.attempts, job.attempt) for job in jobs} == numbers, "an attempt was counted"


def main(url: str, processes: str = "8", jobs: str = "1000") -> None:
    """Run it in a folder that goes away."""
    with tempfile.TemporaryDirectory(prefix="everwork-load-") as folder:
        asyncio.run(Load(url, Path(folder), int(processes)).run(int(jobs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
