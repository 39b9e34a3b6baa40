"""The stage for tests without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from everwork.exceptions import BadConfiguration
from everwork.testing.assertions import Questions
from everwork.testing.harness import Backstage
from everwork.testing.simulation import Run
from everwork.testing.stage import JOBS_MAX, Stage

T = TypeVar("T")


class SyncStage(Questions):
    """`Stage` whose every call blocks; handlers run in an event loop of its own."""

    def __init__(self, backstage: Backstage) -> None:
        super().__init__(backstage)
        self._stage = Stage(backstage)
        self._runner = asyncio.Runner()

    def drain(
        self,
        *,
        until_empty: bool = False,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        max_jobs: int = JOBS_MAX,
        raise_errors: bool = False,
    ) -> list[Run]:
        """Run every job that is due; see `Stage.drain`."""
        return self._run(
            self._stage.drain(
                until_empty=until_empty,
                days=days,
                hours=hours,
                minutes=minutes,
                seconds=seconds,
                max_jobs=max_jobs,
                raise_errors=raise_errors,
            )
        )

    def advance(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> None:
        """Let time pass without workers; see `Stage.advance`."""
        self._run(self._stage.advance(days=days, hours=hours, minutes=minutes, seconds=seconds))

    def run_one(self) -> Run | None:
        """Run the next job that is due; None if there is none."""
        return self._run(self._stage.run_one())

    def close(self) -> None:
        """Let workers clean up and end the event loop."""
        try:
            if self._backstage.cast.is_started:
                self._run(self._backstage.cast.shutdown())
        finally:
            self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if is_in_loop():
            work.close()
            raise BadConfiguration("an event loop runs here: use `async with rehearse(...)`, and await")
        return self._runner.run(work)


def is_in_loop() -> bool:
    """Whether the caller must not block, but await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
