"""A producer of the fleet: `python -m tests.torture.fleet.producer`; its name contains its protocol."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from everwork.spool.contents import status_of
from tests.torture import plan
from tests.torture.fleet.parts import BRAKE, BULK, ZEEBE, RemoteEngine, engine_of, main, read_caller
from tests.torture.history import HistoryWriter
from tests.torture.offline.spools import is_waiting
from tests.torture.process import Life
from tests.torture.producer import batch, trigger_points, unanswered

_PAUSE_SECONDS: Final = 0.05
_ZEEBE_SHARE: Final = 0.12
_BULK_SHARE: Final = 0.68
_CANCEL_SHARE: Final = 0.1
_LONE_SHARE: Final = 0.5
_SPOOLED_MAX: Final = 300


async def produce(life: Life, history: HistoryWriter, stop: asyncio.Event) -> None:
    """Create jobs until SIGTERM, pausing while the workers are behind; then deliver the spooled jobs."""
    async with engine_of(life.name.partition("-")[0], life, history) as engine:
        await _ask(life, engine, stop)
        spool = read_caller().spool
        while spool and is_waiting(Path(spool)):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(_PAUSE_SECONDS)


async def _ask(life: Life, engine: RemoteEngine, stop: asyncio.Event) -> None:
    rng, brake, spool = life.rng, life.folder / BRAKE, read_caller().spool
    names = (f"{life.name}.{life.life}.{number}" for number in count())
    again = unanswered(life)
    while not stop.is_set():
        wanted = [*again, *_batch(life, rng, names), *trigger_points(life, names)]
        created = await engine.create(wanted)
        # A create with a dedupe key is repeated until it gets a response.
        again = [] if created else [one for one in wanted if one.job.dedupe_key is not None]
        keys = [one.key for one in created or () if one.key > 0]
        if keys and rng.random() < _CANCEL_SHARE:
            await engine.cancel([rng.choice(keys)])
        if rng.random() < _LONE_SHARE:
            await engine.create([plan.lone_request(next(names))])
        while not stop.is_set():
            await asyncio.sleep(_PAUSE_SECONDS)
            if not brake.exists() and not _is_behind(spool):
                break


def _is_behind(spool: str) -> bool:
    """Whether so much is spooled that its delivery, after an outage, would take most of the time for the drain."""
    return bool(spool) and status_of(spool).waiting > _SPOOLED_MAX


def _batch(life: Life, rng: random.Random, names: Iterator[str]) -> list[plan.Request]:
    """Like the plan for workers on the store, with fewer groups, and some jobs for workers without attempt numbers."""
    unserved = read_caller().unserved
    moved = [_moved(one, rng.random()) for one in batch(life, rng, names)]
    return [one._replace(job=one.job._replace(type=BULK)) if one.job.type in unserved else one for one in moved]


def _moved(one: plan.Request, drawn: float) -> plan.Request:
    may_move = one.job.dedupe_key is None and one.job.type in (plan.WORK, plan.MANAGED)
    if not may_move or drawn > _ZEEBE_SHARE + _BULK_SHARE:
        return one
    return one._replace(job=one.job._replace(type=ZEEBE if drawn < _ZEEBE_SHARE else BULK))


if __name__ == "__main__":
    main(produce)
