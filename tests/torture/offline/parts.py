"""What producers and workers in offline mode have in common: their spools, their jobs, how they begin and end."""

from __future__ import annotations

import asyncio
import os
import sys
import zlib
from collections.abc import Callable
from typing import Final

from everwork import RetryPolicy, Spool
from everwork.core.outcome import Outcome
from everwork.exceptions import Reject, Retry
from everwork.spool.file import SpoolFile
from tests.torture import faults, mutants
from tests.torture.history import HistoryWriter
from tests.torture.logged import wire_outcome
from tests.torture.offline.spools import SUFFIX
from tests.torture.process import Life, die_with_the_controller, read_life

TYPE: Final = "torture-offline"
CONCURRENCY: Final = 20
PATIENCE_SECONDS: Final = 2.0
SHARED: Final = 2
"""So many producers, and so many workers, share one spool; the others have their own."""
_BACKOFF_SECONDS_MIN: Final = 3.0
ATTEMPTS_MAX: Final = 100
POINTS: Final = ("before-commit", "after-commit")
"""Where processes kill themselves: around the commits of a spool; on SQLite also around those of the store."""

# Shares in percent; what is left over completes immediately.
_SHARES: Final = (("slow", 4), ("long", 1), ("retry", 4), ("reject", 1))

_ATTEMPTS_OF_MISCHIEF: Final = 2
_SLOW_SECONDS: Final = 0.4
_RETRY_SECONDS: Final = 0.2

Program = Callable[[Life, HistoryWriter], None]


def main(program: Program) -> None:
    """Live one life: until SIGTERM asks for a stop, or SIGKILL does not ask."""
    die_with_the_controller()
    life = read_life(sys.argv[1:])
    history = HistoryWriter(life.file(life.life))
    if life.mutant in mutants.names(faults.engine_of(life.url)):
        mutants.apply(life.mutant, life.url)
    faults.arm("sqlite:", os.environ.get(faults.VARIABLE))
    try:
        program(life, history)
    except BaseException as error:
        history.broken(error)
        raise


def spool_of(life: Life) -> Spool:
    """The spool of a process: the first ones of a role share one."""
    role, _, number = life.name.rpartition("-")
    name = role if int(number) < SHARED else life.name
    return Spool(str(life.folder / f"{name}{SUFFIX}"), patience=PATIENCE_SECONDS)


def retry_policy(lease_ms: int) -> RetryPolicy:
    """After a lapsed lease there is time to report late before another attempt begins."""
    return RetryPolicy(max_attempts=ATTEMPTS_MAX, base=max(_BACKOFF_SECONDS_MIN, lease_ms / 1000), factor=1.0)


def action(name: str, attempt: int) -> str:
    """What this attempt of the job does."""
    if attempt > _ATTEMPTS_OF_MISCHIEF:
        return "complete"
    point = zlib.crc32(f"{name}:{attempt}".encode()) % 100
    for chosen, share in _SHARES:
        if point < share:
            return chosen
        point -= share
    return "complete"


def watch_spool(history: HistoryWriter) -> None:
    """Write down which outcomes are kept in a spool, before and after."""
    keep = SpoolFile.keep_outcomes

    def watched_keep(self: SpoolFile, outcomes: list[Outcome]) -> None:
        call_id = history.invoked("keep", [wire_outcome(outcome) for outcome in outcomes])
        keep(self, outcomes)
        history.answered(call_id, ["kept"] * len(outcomes))

    SpoolFile.keep_outcomes = watched_keep  # type: ignore[method-assign, assignment]


async def handle(history: HistoryWriter, key: int, attempt: int, name: str, lease_ms: int) -> str:
    """What is done for a job; when it begins and ends goes to the history of the process, never to the store."""
    history.begin(key, attempt)
    chosen, how = action(name, attempt), "cancelled"
    try:
        await _act(chosen, lease_ms)
        how = chosen
    except (Retry, Reject):
        how = chosen
        raise
    finally:
        history.end(key, attempt, how)
    return f"{key}@{attempt}"


async def _act(chosen: str, lease_ms: int) -> None:
    match chosen:
        case "slow":
            await asyncio.sleep(_SLOW_SECONDS)
        case "long":
            await asyncio.sleep(lease_ms / 1000 * 1.1)
        case "retry":
            raise Retry("again", delay=_RETRY_SECONDS)
        case "reject":
            raise Reject("makes no sense")
        case _:
            pass
