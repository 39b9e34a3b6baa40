"""Functions that `everwork worker` runs on the store itself: `tests.torture.fleet.functions:app`."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from everwork import Everwork, JobContext
from everwork.app import app as app_module
from everwork.app import engine_host
from everwork.engines.contract import Engine
from everwork.service.service import JobService
from tests.torture import clocks, crew, faults, mutants, plan
from tests.torture.fleet.parts import SERVED
from tests.torture.fleet.streamer import handle
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched
from tests.torture.process import Life, read_life

LIFE: Final = "EVERWORK_TORTURE_FUNCTIONS"
"""Passes the program's name and number of restarts to its processes."""
_CONCURRENCY: Final = 10


def make_app() -> Everwork:
    """The application of this process; every call to its engine is logged."""
    clocks.follow()
    life = read_life(json.loads(os.environ[LIFE]))
    history = HistoryWriter(crew.file_of(life, os.getpid()))
    if life.mutant in mutants.names(faults.engine_of(life.url)):
        mutants.apply(life.mutant, life.url)

    def watched_service(engine: Engine, *given: Any, **options: Any) -> JobService:
        return JobService(watched(engine, history), *given, **options)

    vars(engine_host)["JobService"] = watched_service
    vars(app_module)["LEASE_MS_DEFAULT"] = life.lease_ms
    app = Everwork(life.url, worker=f"{life.name}.{life.life}-{os.getpid()}")
    for kind in SERVED:
        _add(app, kind, life, history)
    return app


def _add(app: Everwork, kind: str, life: Life, history: HistoryWriter) -> None:
    policy = plan.LIMITED_POLICY if kind == plan.LIMITED else plan.POLICY
    options: dict[str, Any] = {"policy": policy} if kind == plan.LIMITED else {"retry": policy}

    @app.job(kind, concurrency=_CONCURRENCY, **options)
    async def run(ctx: JobContext, r: str, mark: str = "", trigger: str = "", point: int = 0) -> str:
        return await handle(history, ctx.key, ctx.attempt, r, life.lease_ms)
