"""A spool, the store that it is for, and the programs that use both as real processes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everwork.core.job import NewJob
from everwork.engines.open import open_engine
from everwork.service.store_access import StoreAccess
from everwork.spool.courier import Courier, SpoolThread, Target
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline, Spool
from tests.conformance.observe import every_job
from tests.forked import ForkedPopen

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
"""Reached only by a defect."""


def offline_in(folder: Path, **bounds: Any) -> Offline:
    """A spool for a SQLite store in the same folder."""
    offline = Offline.of(Spool(str(folder / "spool.db"), **bounds), f"sqlite:///{folder}/jobs.db")
    assert offline is not None
    return offline


def numbered(first: int, last: int) -> list[NewJob]:
    """Jobs that say their number."""
    return [NewJob("work", f'{{"number":{number}}}') for number in range(first, last + 1)]


@asynccontextmanager
async def the_store(offline: Offline) -> AsyncIterator[StoreAccess]:
    """The store of a spool, open."""
    engine = open_engine(offline.store)
    store = StoreAccess(engine, "test")
    await store.connect()
    try:
        yield store
    finally:
        await engine.close()


@asynccontextmanager
async def courier(offline: Offline, target: Target) -> AsyncIterator[Courier]:
    """A courier with the file of its own."""
    thread = SpoolThread(offline)
    await thread.open()
    try:
        yield Courier(offline, thread, target)
    finally:
        await thread.close()


async def deliver(offline: Offline) -> Courier:
    """Deliver what a spool holds, once."""
    async with the_store(offline) as store, courier(offline, store) as made, asyncio.timeout(DEADLINE_S):
        await made.deliver()
        return made


async def variables(offline: Offline) -> list[str]:
    """The variables of all jobs in the store, in the order of their keys."""
    engine = open_engine(offline.store)
    await engine.open()
    try:
        return [job.variables for job in reversed(await every_job(engine))]
    finally:
        await engine.close()


def texts(jobs: list[NewJob]) -> list[str]:
    """What `variables` returns for these jobs."""
    return [job.variables for job in jobs]


def kept(offline: Offline, jobs: list[NewJob]) -> None:
    """Write jobs into the spool."""
    file = SpoolFile(*offline)
    file.keep_jobs(jobs)
    file.close()


def counts(offline: Offline) -> tuple[int, int, int]:
    """How many jobs and outcomes wait, and how many entries are set aside."""
    file = SpoolFile(*offline)
    try:
        return file.counts()[:3]
    finally:
        file.close()


def program(name: str, folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """A program of `programs.py`, as a process of its own."""
    command = ["tests.spool.programs", name, str(folder), *map(str, arguments)]
    return ForkedPopen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a program writes."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
