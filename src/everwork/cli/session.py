"""A command's access to the engine: finds its URL, creates a store only if allowed, and closes the service again."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from everwork.cli.options import config_path
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration
from everwork.server.settings import engine_url
from everwork.service.access.principal import Permission, Principal
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import Caller

T = TypeVar("T")
ORIGIN: Final = "cli"
TERMINATED: Final = 128 + signal.SIGTERM


def use(url: str | None, work: Callable[[JobService], Awaitable[T]], *, creates: bool = False) -> T:
    """Do work with an open service. Only a command with `creates` may create a store."""
    return run(_use(resolved_url(url), work, creates=creates))


def use_admin(url: str | None, work: Callable[[Admin], Awaitable[T]], *, creates: bool = False) -> T:
    """Do work as an administrator; everyone with direct access to the engine is one."""
    return use(url, lambda service: work(admin_of(service)), creates=creates)


def admin_of(service: JobService) -> Admin:
    """The admin operations for the person at the terminal."""
    return Admin(service, service.key_ring(), local_caller())


def jobs_of(service: JobService) -> Jobs:
    """The job operations for the person at the terminal."""
    return Jobs(service, local_caller())


def local_caller() -> Caller:
    """The person at the terminal."""
    return Caller(local_principal(), ORIGIN, is_person=True)


def local_principal() -> Principal:
    """The person at the terminal, as the audit log names them."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # For example, in a container, a user id without a name.
        name = f"user {os.getuid()}"
    return Principal(ORIGIN, name, frozenset([Permission.ALL]))


def resolved_url(url: str | None) -> str:
    """The store's URL, from the argument, the environment or the settings file; an in-memory store is refused."""
    url = engine_url(config_path(), os.environ, url)
    if url.partition("?")[0].endswith(":memory:"):
        raise BadConfiguration("engine URL: an in-memory store would end with this command; use a file")
    return url


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work, with logs on standard error.

    SIGTERM cancels the work as SIGINT does, so that it can clean up.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="everwork: %(message)s")
    try:
        return asyncio.run(_terminable(work))
    except asyncio.CancelledError:
        raise SystemExit(TERMINATED) from None


@asynccontextmanager
async def open_store(url: str, *, creates: bool = False) -> AsyncIterator[Engine]:
    """An engine that is open inside the block."""
    engine = open_engine(url)
    await engine.open(create=creates)
    try:
        yield engine
    finally:
        await engine.close()


async def _terminable(work: Coroutine[Any, Any, T]) -> T:
    if threading.current_thread() is not threading.main_thread():
        return await work
    this, loop = asyncio.current_task(), asyncio.get_running_loop()

    def end(*_: object) -> None:
        if this is not None:
            this.cancel()
            loop.call_soon_threadsafe(lambda: None)  # Wake up the loop.

    before = signal.signal(signal.SIGTERM, end)
    try:
        return await work
    finally:
        signal.signal(signal.SIGTERM, before)


async def _use(url: str, work: Callable[[JobService], Awaitable[T]], *, creates: bool) -> T:
    service = JobService(open_engine(url), f"cli-{os.getpid()}")
    await service.open(upkeep=False, create=creates)
    try:
        return await work(service)
    finally:
        await service.close()
