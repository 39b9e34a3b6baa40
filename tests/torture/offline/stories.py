"""Stories about spools: what is acknowledged into one, sent twice, or reported late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Stamp
from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable
from everwork.service.service import JobService
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline
from tests.torture import faults, plan
from tests.torture.logged import LoggedEngine, watched, wire_outcome, wire_request, written
from tests.torture.offline.spools import SUFFIX, delivering

if TYPE_CHECKING:
    from tests.torture.scenarios import Stage

_SECONDS_MAX: Final = 20


class Network:
    """The way to the store: it may be cut, or lose the answers to creates."""

    def __init__(self, engine: Engine) -> None:
        self.is_cut = False
        self.loses = 0
        self._create = engine.create
        vars(engine)["create"] = self.create

    async def create(self, jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Created]:
        """Create jobs, if the store is there; whether its answer arrives is another question."""
        if self.is_cut:
            raise EngineUnavailable("the network is cut")
        created = await self._create(jobs, stamp)
        if self.loses:
            self.loses -= 1
            raise EngineUnavailable("the answer was lost")
        return created


async def killed_after_the_spool_answered(stage: Stage) -> None:
    """The store is away; the process dies the moment it was told that its job is kept."""
    service, network = await _opened(stage)
    network.is_cut = True
    await _ask(service, stage.first)
    faults.die()


async def answer_lost(stage: Stage) -> None:
    """The store has created a job, and its answer was lost; the job is sent again from the spool."""
    service, network = await _opened(stage)
    network.loses = 1
    [kept] = await _ask(service, stage.first)
    async with asyncio.timeout(_SECONDS_MAX):
        await service.delivered(kept.spool_id or "", wait=True)
    await service.close()


async def completion_after_another_attempt(stage: Stage, take: Take) -> None:
    """A completion is kept while the store is away; when it is reported, another worker has the job."""
    await stage.create()
    old = await take(stage.first)
    outcome, offline = plan.outcome(old, "complete"), _offline(stage)
    with closing(SpoolFile(*offline)) as file:
        call_id = stage.first.history.invoked("keep", [wire_outcome(outcome)])
        file.keep_outcomes([outcome])
        stage.first.history.answered(call_id, ["kept"])
    stage.clock.advance(seconds=2)
    await stage.second.engine.sweep("second")
    stage.clock.advance(seconds=2)
    await take(stage.second)
    engine = watched(stage.first.engine.fresh(), stage.first.history)
    await (await delivering(engine, stage.folder / f"story{SUFFIX}", stage.url)).close()


Take = Callable[[LoggedEngine], Coroutine[Any, Any, Any]]


def _offline(stage: Stage) -> Offline:
    offline = Offline.of(str(stage.folder / f"story{SUFFIX}"), stage.url)
    assert offline is not None
    return offline


async def _opened(stage: Stage) -> tuple[JobService, Network]:
    engine = stage.first.engine.fresh()
    network = Network(engine)
    service = JobService(engine, "first", offline=_offline(stage))
    await service.open(upkeep=False)
    return service, network


async def _ask(service: JobService, worker: LoggedEngine) -> list[Created]:
    wanted = plan.Request("spooled", NewJob(plan.WORK, json.dumps({"r": "spooled"})))
    return await written(
        worker.history,
        "create",
        [wire_request(wanted)],
        lambda: service.create([wanted.job]),
        lambda created: ([[one.key, one.deduplicated] for one in created], []),
    )
