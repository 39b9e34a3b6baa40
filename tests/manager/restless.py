"""Workers that are hard to look after."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from everwork import JobContext, WorkerSettings
from tests.manager.workers import LOG, Told, say


def trouble() -> Path:
    """While this file is there, nobody can start."""
    return Path(os.environ[LOG]).with_name("trouble")


class Forking(Told):
    """Dies, and leaves a process behind that has everything which it had open."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="forking", sources={"fork"})

    async def __call__(self, ctx: JobContext) -> None:
        if os.fork() == 0:
            time.sleep(3600)  # noqa: ASYNC251
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)


class Moody(Told):
    """Starts only while there is no trouble."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="moody", sources={"moody"})

    async def startup(self) -> None:
        if trouble().exists():
            say("troubled")
            raise RuntimeError("not now")
        await super().startup()

    async def __call__(self, ctx: JobContext) -> None:
        say("moody", ctx.key)
