"""What a worker and a producer process have in common: arguments, history, engine, an orderly stop."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable
from tests.torture import faults, mutants
from tests.torture.history import HistoryWriter
from tests.torture.logged import LoggedEngine


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a process: who it is, which life it is, and what it was told."""

    name: str
    life: int
    url: str
    folder: Path
    seed: int
    lease_ms: int
    epoch_ms: int
    mutant: str

    @property
    def outages(self) -> bool:
        """Whether the store has a server, which is killed too; a file has no excuse."""
        return not self.url.startswith("sqlite")

    @property
    def rng(self) -> random.Random:
        """Chance, the same whenever this life is lived again."""
        return random.Random(f"{self.seed}:{self.name}:{self.life}")

    def file(self, life: int) -> Path:
        """The history of one of this process's lives."""
        return self.folder / f"{self.name}.{life:04d}.jsonl"

    def arguments(self) -> list[str]:
        """The command line that `read_life` reads."""
        return [
            self.name, str(self.life), self.url, str(self.folder), str(self.seed), str(self.lease_ms),
            str(self.epoch_ms), self.mutant,
        ]  # fmt: skip


def read_life(arguments: list[str]) -> Life:
    """The life that a command line describes."""
    parser = argparse.ArgumentParser()
    for name in ("name", "life", "url", "folder", "seed", "lease_ms", "epoch_ms", "mutant"):
        parser.add_argument(name, type=int if name in ("life", "seed", "lease_ms", "epoch_ms") else str)
    given = parser.parse_args(arguments)
    return Life(**{**vars(given), "folder": Path(given.folder)})


_PAUSES: Final = (0.02, 0.05, 0.1, *[0.2] * 100)
Body = Callable[[Life, LoggedEngine, asyncio.Event], Awaitable[None]]


def main(body: Body) -> None:
    """Live one life: until SIGTERM asks for a stop, or SIGKILL does not ask."""
    die_with_the_controller()
    life = read_life(sys.argv[1:])
    history = HistoryWriter(life.file(life.life))
    try:
        asyncio.run(_live(life, history, body))
    except BaseException as error:
        history.broken(error)
        raise


def die_with_the_controller() -> None:
    """Leave nobody behind when the controller itself is killed (Linux's PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


async def _live(life: Life, history: HistoryWriter, body: Body) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    mutants.apply(life.mutant, life.url)
    faults.arm(life.url, os.environ.get(faults.VARIABLE), waiting=True)
    engine = await patiently(lambda: _opened(life), outages=life.outages)
    faults.set_going()
    try:
        await body(life, LoggedEngine(engine, history), stop)
    finally:
        await engine.close()


async def _opened(life: Life) -> Engine:
    # Both ways to write are killed: with a writer's thread, and in the loop itself (mutants break the first).
    engine = open_engine(life.url, own_loop=life.life % 2 == 1 and not life.mutant)
    await engine.open()
    return engine


Answer = TypeVar("Answer")


async def patiently(call: Callable[[], Awaitable[Answer]], *, outages: bool) -> Answer:
    """Call until the server answers, with growing pauses; without outages to be expected, the first error counts."""
    for pause in _PAUSES:
        try:
            return await call()
        except EngineUnavailable:
            if not outages:
                raise
        await asyncio.sleep(pause)
    return await call()
