"""A producer in offline mode: `python -m tests.torture.offline.producer`, see `process.Life`."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from everwork import Everwork, JobKey
from everwork.client import Client
from everwork.core.job import NewJob
from tests.torture.history import HistoryWriter
from tests.torture.offline import remote
from tests.torture.offline.parts import TYPE, main, spool_of
from tests.torture.offline.spools import is_waiting
from tests.torture.process import Life

_BATCHES: Final = (1, 1, 1, 1, 2, 3, 12)
_PAUSE_SECONDS: Final = (0.01, 0.15)
_LOOK_SECONDS: Final = 0.1


def produce(life: Life, history: HistoryWriter) -> None:
    """Ask for jobs until told to stop, then wait until the spool is delivered."""
    asyncio.run(_produce(life, history))


async def _produce(life: Life, history: HistoryWriter) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    rng = life.rng
    names = (f"{life.name}.{life.life}.{number}" for number in count())
    async with remote.client_of(life) if remote.is_remote(life) else Everwork(life.url, offline=spool_of(life)) as way:
        while not stop.is_set():
            await ask(way, history, batch(rng, names))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), rng.uniform(*_PAUSE_SECONDS))
        while is_waiting(Path(spool_of(life).path)):  # noqa: ASYNC110 - no one tells
            await asyncio.sleep(_LOOK_SECONDS)


def batch(rng: random.Random, names: Iterator[str]) -> list[str]:
    """The names of the jobs of the next call."""
    return [next(names) for _ in range(rng.choice(_BATCHES))]


async def ask(way: Everwork | Client, history: HistoryWriter, names: Sequence[str]) -> None:
    """Enqueue jobs, and write down that they were acknowledged before anything else is done."""
    call_id = history.invoked("create", [shown(name) for name in names])
    if isinstance(way, Client):
        answers = [[one.key, one.deduplicated] for one in await remote.create(way, names)]
    else:
        answers = [[int(key), key.deduplicated] for key in await enqueue(way, names)]
    history.answered(call_id, answers)


async def enqueue(app: Everwork, names: Sequence[str]) -> list[JobKey]:
    """Enqueue jobs, alone or in bulk."""
    if len(names) == 1:
        return [await app.enqueue(TYPE, r=names[0])]
    return [*await app.enqueue_many([(TYPE, {"r": name}) for name in names])]


def shown(name: str) -> dict[str, object]:
    """A job asked for, as the histories show it."""
    return {"r": name, "type": TYPE, "dedupe": None, "job": list(NewJob(TYPE, json.dumps({"r": name})))}


if __name__ == "__main__":
    main(produce)
