"""A worker in offline mode: `python -m tests.torture.offline.worker`, see `process.Life`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from everwork import Everwork, JobContext
from everwork.app import app as app_module
from everwork.app import engine_host
from everwork.engines.contract import Engine
from everwork.service.service import JobService
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched
from tests.torture.offline import remote
from tests.torture.offline.parts import CONCURRENCY, TYPE, handle, main, retry_policy, spool_of, watch_spool
from tests.torture.process import Life

_SHUTDOWN_SECONDS: Final = 5.0


def work(life: Life, history: HistoryWriter) -> None:
    """Run jobs until SIGTERM comes."""
    if remote.is_remote(life):
        asyncio.run(remote.work(life, history))
    else:
        _work_on_the_store(life, history)


def _work_on_the_store(life: Life, history: HistoryWriter) -> None:
    def watched_service(engine: Engine, *given: Any, **options: Any) -> JobService:
        return JobService(watched(engine, history), *given, **options)

    vars(engine_host)["JobService"] = watched_service
    vars(app_module)["LEASE_MS_DEFAULT"] = life.lease_ms
    watch_spool(history)
    app = Everwork(life.url, worker=f"{life.name}.{life.life}", offline=spool_of(life))

    @app.job(TYPE, retry=retry_policy(life.lease_ms), concurrency=CONCURRENCY)
    async def run(ctx: JobContext, r: str) -> str:
        return await handle(history, ctx.key, ctx.attempt, r, life.lease_ms)

    app.run(shutdown_timeout=_SHUTDOWN_SECONDS)


if __name__ == "__main__":
    main(work)
