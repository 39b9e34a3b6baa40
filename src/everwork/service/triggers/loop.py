"""Triggers: jobs by the clock. Every program that knows a trigger tries; the store lets each time point pass once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from everwork.aio.isolated import ANSWER_SECONDS_MAX, IsolatedCall
from everwork.aio.loops import BackgroundLoop
from everwork.core.job import NewJob
from everwork.core.limits import FIRES_STEP_MAX
from everwork.core.schedule import GRACE_MS, Due, Outlook, Plan, outlook
from everwork.engines.contract import Engine
from everwork.engines.values import Fire, TriggerMark
from everwork.logs import Outage, get_logger
from everwork.service.triggers.fires import fire_key

log = get_logger("everwork")

LOOK_MS: Final = 5_000
"""How often all triggers are looked at, however long nothing is due: clocks may be set, marks may be moved."""
ASKED_MS: Final = 1_000
"""How often a trigger is looked at whose schedule has not answered yet."""
LONG_MS: Final = 3_600_000
"""Points of an absence longer than this are counted in a thread: there may be many."""
PATIENCE_SECONDS: Final = 1.0
"""How long all triggers wait for the answers of schedules of users; what comes later is taken up later."""
BROKEN_MS_MIN: Final = 1_000
BROKEN_MS_MAX: Final = 60_000

Off = Callable[[], Awaitable[frozenset[str]]]
"""Which triggers are switched off, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A trigger as the loop knows it: when it fires, and the job that each of its time points creates.

    `cache_ms`: how long it counts as switched on after a look (None: each time it is looked again); `check_every_ms`:
    how often it is looked whether one that is switched off is on again.
    """

    worker_id: str
    trigger_id: str
    type: str
    plan: Plan
    variables: str = "{}"
    check_every_ms: int = 60_000
    cache_ms: int | None = 5_000
    max_attempts: int | None = None

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{self.worker_id}/{self.trigger_id}"

    def fire(self, point_ms: int) -> Fire:
        """A time point with its job."""
        job = NewJob(
            type=self.type,
            variables=self.variables,
            max_attempts=self.max_attempts,
            dedupe_key=fire_key(self.worker_id, self.trigger_id, point_ms),
        )
        return Fire(self.name, point_ms, job)


class TriggerLoop(BackgroundLoop):
    """Fires triggers at their time points, by the engine's clock, until it is stopped."""

    def __init__(self, engine: Engine, triggers: Iterable[Scheduled], off: Off) -> None:
        super().__init__("triggers", self._step, LOOK_MS / 1000)
        self._engine = engine
        self._off = off
        self._standings = {one.name: _Standing(one, self.wake) for one in triggers}
        self._expected = list(self._standings)
        self._now_ms = 0
        self._seconds_left: float | None = None
        self.fired = 0

    def start(self) -> None:
        """Begin to fire, if there is anything to be fired."""
        if self._standings:
            super().start()

    async def run(self) -> None:
        """Fire until the caller is cancelled."""
        await self._run()

    async def tick(self) -> float:
        """Fire what is due; the seconds until the next time point or look, at most a few."""
        now_ms = await self._read_marks()
        due = [one for one in self._standings.values() if one.look_ms <= now_ms]
        for one in due:
            await one.find_points(now_ms)
        await self._hear(due, now_ms)
        if any(one.wants_status(now_ms) for one in due):
            await self._read_status(now_ms)
        share = max(1, FIRES_STEP_MAX // max(1, len(due)))
        fires = [fire for one in due for fire in one.next_fires(share)]
        for start in range(0, len(fires), FIRES_STEP_MAX):
            await self._fire(fires[start : start + FIRES_STEP_MAX])
        for one in due:
            one.plan_look(now_ms)
        return self._until_next(now_ms)

    async def catch_up(self, steps_max: int) -> None:
        """Fire until nothing is due, for somebody who does not stay; a bounded number of steps."""
        for _ in range(steps_max):
            if await self.tick() > 0:
                return

    async def _read_marks(self) -> int:
        """The engine's now; where those triggers stand that are expected to be due."""
        answer = await self._engine.trigger_marks(self._expected)
        if answer.now_ms < self._now_ms:
            for one in self._standings.values():
                one.begin_anew()  # The clock was set back: what was planned by it does not hold.
        self._now_ms = answer.now_ms
        for name, mark in zip(self._expected, answer.marks, strict=True):
            self._standings[name].adopt(mark)
        return answer.now_ms

    async def _hear(self, due: Sequence[_Standing], now_ms: int) -> None:
        """Wait a little for what schedules of users have just been asked."""
        asked = [question.answer for one in due if (question := one.question) is not None and not question.is_awaited]
        if asked:
            await asyncio.wait(asked, timeout=PATIENCE_SECONDS)
        for one in due:
            one.hear(now_ms)

    async def _read_status(self, now_ms: int) -> None:
        off = await self._off()
        for name, one in self._standings.items():
            one.learn_status(now_ms, is_off=name in off)

    async def _fire(self, fires: Sequence[Fire]) -> None:
        for fire, answer in zip(fires, await self._engine.fire(fires), strict=True):
            self.fired += answer.created is not None
            self._standings[fire.trigger].adopt(answer.mark)

    def _until_next(self, now_ms: int) -> float:
        looks = [one.look_ms for one in self._standings.values()]
        wake_ms = min([*looks, now_ms + LOOK_MS])
        is_soon = wake_ms < now_ms + LOOK_MS
        self._expected = [name for name, one in self._standings.items() if not is_soon or one.look_ms <= wake_ms]
        return max(0, wake_ms - now_ms) / 1000

    async def _step(self) -> bool:
        clock = asyncio.get_running_loop()
        began, self._seconds_left = clock.time(), None
        seconds = await self.tick()
        self._seconds_left = seconds - (clock.time() - began)
        return seconds == 0

    async def _sleep(self, seconds: float) -> None:
        """Until the next time point, not earlier and hardly later; after an error, as long as any loop does."""
        if self._seconds_left is None:
            await super()._sleep(seconds)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), max(self._seconds_left, 0.0) + 0.001)


class _Standing:
    """Where one trigger stands in this process."""

    def __init__(self, scheduled: Scheduled, hurry: Callable[[], None]) -> None:
        self.look_ms = 0
        self.question: IsolatedCall | None = None
        """What its schedule is asked in a thread of its own."""
        self._hurry = hurry
        self._next_ms: int | None = None
        self._scheduled = scheduled
        self._mark = TriggerMark(0, 0)
        self._points: deque[int] = deque()
        self._pass_ms: int | None = None
        """Points up to here are to pass without a job."""
        self._is_off = False
        self._status_ms: int | None = None
        self._left_ms: int | None = None
        """Up to where points have passed when it was last seen switched off; None: it was on."""
        self._broken_until_ms = 0
        self._broken_ms = BROKEN_MS_MIN
        self._breakage = Outage(
            log, "a trigger is broken, it waits", "a trigger works again", trigger=scheduled.name, type=scheduled.type
        )

    def adopt(self, mark: TriggerMark) -> None:
        """Believe the store: points that have passed are not ours to fire."""
        self._mark = mark
        if self._pass_ms is not None and self._pass_ms <= mark.last_ms:
            self._pass_ms = None
        while self._points and self._points[0] <= mark.last_ms:
            self._points.popleft()

    def begin_anew(self) -> None:
        """Nothing holds that was planned by the clock."""
        self.look_ms = self._broken_until_ms = 0

    async def find_points(self, now_ms: int) -> None:
        """Find out what is due, or begin to ask for it."""
        self._leave_old(now_ms)
        if self._is_off or self._points or self.question or now_ms < self._broken_until_ms:
            return
        self._return(now_ms)
        instants = (self._mark.began_ms, max(self._mark.last_ms, self._pass_ms or 0), now_ms)
        if self._scheduled.plan.is_foreign:
            self.question = IsolatedCall(self._scheduled.plan, instants, self._look)
            return
        try:
            found = await self._found(instants)
        except Exception as error:  # noqa: BLE001 - one bad schedule must not stop the others
            self._fail(now_ms, error)
            return
        self._take(found)

    def hear(self, now_ms: int) -> None:
        """Take the answer to what was asked, if it has come."""
        question = self.question
        if question is None:
            return
        if not question.answer.done():
            question.is_awaited = True
            if question.is_late:
                self._fail(now_ms, TimeoutError(f"its schedule takes longer than {ANSWER_SECONDS_MAX:g} seconds"))
            return
        self.question, found = None, question.answer.result()
        if isinstance(found, Exception):
            self._fail(now_ms, found)
        elif not question.is_stale:
            self._take(found)
            self._leave_old(now_ms)

    def _take(self, found: Outlook) -> None:
        self._next_ms = found.next_ms
        self._points.extend(point_ms for point_ms in found.due.points if point_ms > self._mark.last_ms)
        self._broken_ms, self._broken_until_ms = BROKEN_MS_MIN, 0
        self._breakage.over()
        if found.due.skipped:
            self._tell_skipped(found.due)

    def _tell_skipped(self, due: Due) -> None:
        log.warning(
            "a trigger has missed more time points than it catches up with, the oldest are skipped",
            trigger=self._scheduled.name,
            skipped=f"at least {due.skipped}" if due.is_more else due.skipped,
            catches_up_with=len(due.points),
        )

    def _look(self) -> None:
        """An answer has come: be looked at, if nobody waits for it."""
        if self.question is not None and self.question.is_awaited:
            self.look_ms = 0
            self._hurry()

    def _leave_old(self, now_ms: int) -> None:
        """Without catch-up, what could not be fired in time is not fired later."""
        while not self._scheduled.plan.is_catchup and self._points and self._points[0] < now_ms - GRACE_MS:
            self._points.popleft()

    def _forget_points(self) -> None:
        self._points.clear()
        if self.question is not None:
            self.question.is_stale = True

    def _return(self, now_ms: int) -> None:
        """Switched on again: what was missed while it was off is not caught up with.

        If the mark has moved, somebody else has seen to that, and may have fired since.
        """
        if self._left_ms is not None and self._left_ms == self._mark.last_ms:
            self._pass_ms = max(self._left_ms, now_ms - GRACE_MS)
        self._left_ms = None

    async def _found(self, instants: tuple[int, int, int]) -> Outlook:
        _, last_ms, now_ms = instants
        if now_ms - last_ms > LONG_MS:
            return await asyncio.to_thread(outlook, self._scheduled.plan, *instants)
        return outlook(self._scheduled.plan, *instants)

    def wants_status(self, now_ms: int) -> bool:
        """Whether it must be looked up if it is switched on, before it does anything."""
        if not self._is_off and not self._points:
            return False
        if self._status_ms is None or now_ms < self._status_ms:
            return True
        holds_ms = self._scheduled.check_every_ms if self._is_off else self._scheduled.cache_ms
        return holds_ms is None or now_ms - self._status_ms >= holds_ms

    def learn_status(self, now_ms: int, *, is_off: bool) -> None:
        """Take what the registry says now."""
        self._status_ms = now_ms
        if is_off != self._is_off:
            self._is_off = is_off
            self.look_ms = 0
        if is_off:
            self._pass_ms = self._left_ms = now_ms
            self._forget_points()

    def next_fires(self, most: int) -> list[Fire]:
        """What is to be fired now, the oldest point first."""
        fires = [] if self._pass_ms is None else [Fire(self._scheduled.name, self._pass_ms, None)]
        return fires + [self._scheduled.fire(point_ms) for point_ms in islice(self._points, most)]

    def plan_look(self, now_ms: int) -> None:
        """Decide when to look at it again."""
        if self._is_off:
            self.look_ms = (self._status_ms or 0) + self._scheduled.check_every_ms
        elif self.question is not None and self.question.answer.done():
            self.look_ms = now_ms  # It came while others were fired.
        elif now_ms < self._broken_until_ms:
            self.look_ms = self._broken_until_ms
        elif self.question is not None:
            # Not for its answer, see `_look`, but because it may take too long.
            self.look_ms = now_ms + ASKED_MS
        elif self._points or self._left_ms is not None:
            self.look_ms = now_ms
        else:
            self.look_ms = now_ms + LOOK_MS if self._next_ms is None else self._next_ms

    def _fail(self, now_ms: int, error: Exception) -> None:
        """It is broken: it waits, ever longer."""
        self._breakage.report(error)
        self._points.clear()
        self.look_ms = self._broken_until_ms = now_ms + self._broken_ms
        self._broken_ms = min(2 * self._broken_ms, BROKEN_MS_MAX)
