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

from everwork.engines.open import open_engine
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


Body = Callable[[Life, LoggedEngine, asyncio.Event], Awaitable[None]]


def main(body: Body) -> None:
    """Live one life: until SIGTERM asks for a stop, or SIGKILL does not ask."""
    _die_with_the_controller()
    life = read_life(sys.argv[1:])
    history = HistoryWriter(life.file(life.life))
    try:
        asyncio.run(_live(life, history, body))
    except BaseException as error:
        history.broken(error)
        raise


def _die_with_the_controller() -> None:
    """Leave nobody behind when the controller itself is killed (Linux's PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


async def _live(life: Life, history: HistoryWriter, body: Body) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    mutants.apply(life.mutant)
    faults.arm(life.url, os.environ.get(faults.VARIABLE))
    # Both ways to write are killed: with a writer's thread, and in the loop itself (mutants break the first).
    engine = open_engine(life.url, own_loop=life.life % 2 == 1 and not life.mutant)
    await engine.open()
    try:
        await body(life, LoggedEngine(engine, history), stop)
    finally:
        await engine.close()
