"""Runs user code that may block in its own thread, so that it delays neither the event loop nor the exit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from everwork.core.schedule import Every, Outlook, Plan, Schedule, outlook

ANSWER_SECONDS_MAX: Final = 5.0
"""How long a schedule may take to compute one time."""


class ScheduleCall:
    """Computes the times of a user's schedule in a thread; `on_answer` is called when it is done.

    The time limit applies to each computed time, so catching up on many of them can take longer.
    """

    def __init__(self, plan: Plan, instants: tuple[int, int, int], on_answer: Callable[[], None]) -> None:
        self.is_stale = False
        """Whether the call is outdated and its answer must not be used."""
        self.is_awaited = False
        """Whether a caller has already waited for the answer; it is awaited only once."""
        self.answer: asyncio.Future[Outlook | Exception] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda _: on_answer())
        self._point_started_at = time.monotonic()
        self._plan = replace(plan, schedule=self._timed(plan.schedule))
        self._instants = instants
        # A daemon thread, so that it cannot keep the process from exiting if it is stuck.
        threading.Thread(target=self._compute, args=(self.answer.get_loop(),), daemon=True, name="schedule").start()

    @property
    def is_late(self) -> bool:
        """Whether the current computation is taking too long."""
        return not self.answer.done() and time.monotonic() - self._point_started_at > ANSWER_SECONDS_MAX

    def _timed(self, schedule: Schedule) -> Schedule:
        """The same schedule, which also records when each computation started."""
        if isinstance(schedule, Every):
            return schedule
        next_after = schedule.next_after

        def timed(after_ms: int) -> int | None:
            self._point_started_at = time.monotonic()
            return next_after(after_ms)

        return schedule._replace(next_after=timed)

    def _compute(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            answer: Outlook | Exception = outlook(self._plan, *self._instants)
        except Exception as error:  # noqa: BLE001 - user code
            answer = error
        except BaseException as error:  # noqa: BLE001 - nothing else handles errors of this thread; SystemExit must not exit
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        with suppress(RuntimeError):  # The loop is closed: no caller is left to answer.
            loop.call_soon_threadsafe(self._set_answer, answer)

    def _set_answer(self, answer: Outlook | Exception) -> None:
        # Errors are set as values, because asyncio logs exceptions that are never retrieved.
        if not self.answer.done():
            self.answer.set_result(answer)
