"""Code of users that may block: it runs in a thread of its own, which holds up neither an event loop nor the exit."""

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
"""How long a schedule may think about one time point."""


class IsolatedCall:
    """What a foreign schedule says of its time points, asked in a thread. `told` is called when it has answered.

    Counted is the time for one point: to catch up with many may take longer.
    """

    def __init__(self, plan: Plan, instants: tuple[int, int, int], told: Callable[[], None]) -> None:
        self.is_void = False
        """What was asked for does not hold any more: the answer is not to be used."""
        self.is_known = False
        """Somebody has waited for the answer once, which is enough."""
        self.answer: asyncio.Future[Outlook | Exception] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda _: told())
        self._asked_at = time.monotonic()
        self._plan = replace(plan, schedule=self._counted(plan.schedule))
        self._instants = instants
        # A daemon: one that is stuck must not keep the process from its end.
        threading.Thread(target=self._think, args=(self.answer.get_loop(),), daemon=True, name="schedule").start()

    @property
    def is_late(self) -> bool:
        """Whether it takes too long."""
        return not self.answer.done() and time.monotonic() - self._asked_at > ANSWER_SECONDS_MAX

    def _counted(self, schedule: Schedule) -> Schedule:
        """The same schedule; it is known when it was last asked."""
        if isinstance(schedule, Every):
            return schedule
        next_after = schedule.next_after

        def counted(after_ms: int) -> int | None:
            self._asked_at = time.monotonic()
            return next_after(after_ms)

        return schedule._replace(next_after=counted)

    def _think(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            found: Outlook | Exception = outlook(self._plan, *self._instants)
        except Exception as error:  # noqa: BLE001 - code of users
            found = error
        except BaseException as error:  # noqa: BLE001 - nobody else looks after this thread; SystemExit ends no program
            found = RuntimeError(f"{type(error).__name__}: {error}")
        with suppress(RuntimeError):  # The loop is closed: nobody waits for an answer.
            loop.call_soon_threadsafe(self._tell, found)

    def _tell(self, found: Outlook | Exception) -> None:
        # As a value: an error that nobody fetches would be told by asyncio.
        if not self.answer.done():
            self.answer.set_result(found)
