"""Programs that tests start as processes, and kill: `python -m tests.spool.programs NAME FOLDER [ARGUMENT]...`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from everwork import Everwork
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Stamp
from everwork.exceptions import EngineError
from everwork.service.store_access import StoreAccess
from everwork.spool.courier import Turn
from everwork.spool.entries import Moment
from everwork.spool.file import SpoolFile
from tests.spool.kit import courier, numbered, offline_in, the_store

NOBODY = 65_534


def produce(folder: Path, jobs: str) -> None:
    """Enqueue jobs while the store is away, write the spool id of the last, and wait to be killed."""
    app = Everwork(offline_in(folder).store, offline=str(folder / "spool.db"))
    keys = [app.sync.enqueue("work", number=number) for number in range(1, int(jobs) + 1)]
    print(keys[-1].spool_id, flush=True)
    sys.stdin.read()


def fork(folder: Path) -> None:
    """Enqueue, fork, and enqueue in both processes; the store is away all the time."""
    app = Everwork(offline_in(folder).store, offline=str(folder / "spool.db"))
    app.sync.enqueue("work", number=1)
    if (child := os.fork()) == 0:
        app.sync.enqueue("work", number=2)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    app.sync.enqueue("work", number=3)
    print(status, flush=True)


def hold_turn_and_fork(folder: Path) -> None:
    """Take the right to deliver, and fork; write the child's id."""
    turn = Turn(offline_in(folder).spool.path)
    turn.take()
    if (child := os.fork()) == 0:
        os.close(1)
        signal.pause()
    print(child, flush=True)
    signal.pause()


def deliver(folder: Path) -> None:
    """Deliver at the same time as others: begin when a line comes, write how many were delivered."""
    offline = offline_in(folder)

    async def run() -> int:
        async with the_store(offline) as store, courier(offline, store) as made:
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            file = SpoolFile(*offline)
            while file.has_waiting():
                await made.deliver()
            return made.delivered

    print(asyncio.run(run()), flush=True)


class SilentStore(StoreAccess):
    """A store that creates jobs, but whose answer to the second batch never comes."""

    batches = 0

    async def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> list[Created]:
        """Create them; of the second batch nothing is heard until a line comes."""
        created = await super().create_stamped(jobs, stamp)
        self.batches += 1
        if self.batches == 2:
            print("sent", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        return created


def deliver_in_silence(folder: Path) -> None:
    """Deliver, and wait in the middle, after the store has created a batch and before that is known."""
    offline = offline_in(folder)

    async def run() -> int:
        async with the_store(offline) as store:
            silent = SilentStore(store._engine, "silent")
            async with courier(offline, silent) as made:
                await made.deliver()
                return made.delivered

    print(asyncio.run(run()), flush=True)


def fill_disk(folder: Path) -> None:
    """Keep jobs until the disk is full, which for this process is early; write how many were kept, and the error."""
    file = SpoolFile(*offline_in(folder))
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    number = 0
    try:
        while True:
            file.keep_jobs(numbered(number + 1, number + 50))
            number += 50
    except EngineError as error:
        print(number, flush=True)
        print(error, flush=True)


def open_as_nobody(folder: Path) -> None:
    """Open the spool as a user without the rights of an administrator; write the error."""
    Moment.now()  # What Python loads for it may not be readable for that user.
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        file = SpoolFile(*offline_in(folder))
        file.keep_jobs(numbered(1, 1))
        print("kept", flush=True)
    except EngineError as error:
        print(error, flush=True)


PROGRAMS = (produce, fork, hold_turn_and_fork, deliver, deliver_in_silence, fill_disk, open_as_nobody)

if __name__ == "__main__":
    [wanted] = [one for one in PROGRAMS if one.__name__ == sys.argv[1]]
    wanted(Path(sys.argv[2]), *sys.argv[3:])
