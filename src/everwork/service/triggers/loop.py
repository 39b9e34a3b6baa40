"""Fires triggers. Every program with a trigger tries to fire it; the store accepts each scheduled time only once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from everwork.aio.loops import BackgroundLoop
from everwork.core.job import NewJob
from everwork.core.limits import FIRES_STEP_MAX, HOUR_MS
from everwork.core.schedule import GRACE_MS, Due, Outlook, Plan, outlook
from everwork.engines.contract import Engine
from everwork.engines.rules import TRIGGER_MARK, mark_text
from everwork.engines.values import Fire, TriggerMark
from everwork.logs import Outage, get_logger
from everwork.service.triggers.fires import fire_key
from everwork.service.triggers.schedule_call import ANSWER_SECONDS_MAX, ScheduleCall

log = get_logger("everwork")

CHECK_MS: Final = 5_000
"""How often all triggers are checked, even if none is due: clocks can be adjusted and marks can move."""
PENDING_MS: Final = 1_000
"""How often a trigger is checked while its schedule is still computing."""
LONG_MS: Final = 3_600_000
"""After an absence longer than this, the missed times are computed in a thread, because there can be many."""
CALL_WAIT_SECONDS: Final = 1.0
"""How long the loop waits for users' schedules to answer; answers that arrive later are processed later."""
BROKEN_MS_MIN: Final = 1_000
BROKEN_MS_MAX: Final = 60_000
AHEAD_MS_MAX: Final = HOUR_MS
"""A mark further in the future was made while the clock was wrong. If the clock was set back by less, triggers wait
until it reaches the mark again, so that no scheduled time is repeated."""

Off = Callable[[], Awaitable[frozenset[str]]]
"""Returns the names of the disabled triggers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A trigger in the loop: when it fires, and the job that each scheduled time creates.

    `cache_ms` is how long the status "on" is cached, or None if it is not cached; `check_every_ms` is how often a
    disabled trigger is checked.
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
        """A scheduled time with its job."""
        job = NewJob(
            type=self.type,
            variables=self.variables,
            max_attempts=self.max_attempts,
            dedupe_key=fire_key(self.worker_id, self.trigger_id, point_ms),
        )
        return Fire(self.name, point_ms, job)


class TriggerLoop(BackgroundLoop):
    """Fires triggers at their scheduled times, by the engine's clock, until it is stopped."""

    def __init__(self, engine: Engine, triggers: Iterable[Scheduled], off: Off) -> None:
        super().__init__("triggers", self._step, CHECK_MS / 1000)
        self._engine = engine
        self._off = off
        self._states = {one.name: _TriggerState(one, self.wake) for one in triggers}
        self._expected = list(self._states)
        self._now_ms = 0
        self._seconds_left: float | None = None
        self.fired = 0

    def start(self) -> None:
        """Start firing, if there are triggers."""
        if self._states:
            super().start()

    async def run(self) -> None:
        """Fire until the caller is cancelled."""
        await self._run()

    async def tick(self) -> float:
        """Fire due triggers; returns the seconds until the next scheduled time or check, at most a few."""
        now_ms = await self._read_marks()
        due = [one for one in self._states.values() if one.check_ms <= now_ms]
        for one in due:
            await one.find_points(now_ms)
        await self._await_calls(due, now_ms)
        if any(one.needs_status(now_ms) for one in due):
            await self._read_status(now_ms)
        share = max(1, FIRES_STEP_MAX // max(1, len(due)))
        fires = [fire for one in due for fire in one.next_fires(share)]
        for start in range(0, len(fires), FIRES_STEP_MAX):
            await self._fire(fires[start : start + FIRES_STEP_MAX])
        for one in due:
            one.plan_check(now_ms)
        return self._until_next(now_ms)

    async def catch_up(self, steps_max: int) -> None:
        """Fire until no trigger is due, in at most `steps_max` steps; for callers that do not run the loop."""
        for _ in range(steps_max):
            if await self.tick() > 0:
                return

    async def _read_marks(self) -> int:
        """Read the marks of the triggers that are expected to be due; returns the engine's time."""
        answer = await self._engine.trigger_marks(self._expected)
        if answer.now_ms < self._now_ms:
            for one in self._states.values():
                one.reset()  # The clock was set back, so plans based on it are invalid.
        self._now_ms = answer.now_ms
        for name, mark in zip(self._expected, answer.marks, strict=True):
            is_ahead = max(mark) > answer.now_ms + AHEAD_MS_MAX
            self._states[name].adopt(await self._corrected(name, mark) if is_ahead else mark)
        return answer.now_ms

    async def _corrected(self, name: str, mark: TriggerMark) -> TriggerMark:
        """Move the mark of a trigger that fired while the clock was ahead; otherwise, it would not fire until then."""
        now_ms = self._now_ms
        log.warning(
            "a trigger's last scheduled time is in the future; the trigger continues from now",
            trigger=name,
            last_ms=mark.last_ms,
        )
        corrected = TriggerMark(min(mark.began_ms, now_ms), min(mark.last_ms, now_ms))
        await self._engine.register(TRIGGER_MARK, name, mark_text(corrected))
        return corrected

    async def _await_calls(self, due: Sequence[_TriggerState], now_ms: int) -> None:
        """Wait briefly for users' schedules that were just called."""
        pending = [call.answer for one in due if (call := one.call) is not None and not call.is_awaited]
        if pending:
            await asyncio.wait(pending, timeout=CALL_WAIT_SECONDS)
        for one in due:
            one.collect(now_ms)

    async def _read_status(self, now_ms: int) -> None:
        off = await self._off()
        for name, one in self._states.items():
            one.set_status(now_ms, is_off=name in off)

    async def _fire(self, fires: Sequence[Fire]) -> None:
        for fire, answer in zip(fires, await self._engine.fire(fires), strict=True):
            self.fired += answer.created is not None
            self._states[fire.trigger].adopt(answer.mark)

    def _until_next(self, now_ms: int) -> float:
        checks = [one.check_ms for one in self._states.values()]
        wake_ms = min([*checks, now_ms + CHECK_MS])
        is_soon = wake_ms < now_ms + CHECK_MS
        self._expected = [name for name, one in self._states.items() if not is_soon or one.check_ms <= wake_ms]
        return max(0, wake_ms - now_ms) / 1000

    async def _step(self) -> bool:
        clock = asyncio.get_running_loop()
        began, self._seconds_left = clock.time(), None
        seconds = await self.tick()
        self._seconds_left = seconds - (clock.time() - began)
        return seconds == 0

    async def _sleep(self, seconds: float) -> None:
        """Sleep until just after the next scheduled time; after an error, as long as any background loop does."""
        if self._seconds_left is None:
            await super()._sleep(seconds)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), max(self._seconds_left, 0.0) + 0.001)


class _TriggerState:
    """The state of one trigger in this process."""

    def __init__(self, scheduled: Scheduled, wake: Callable[[], None]) -> None:
        self.check_ms = 0
        self.call: ScheduleCall | None = None
        """The running call of the trigger's schedule, in its own thread."""
        self._wake = wake
        self._next_ms: int | None = None
        self._scheduled = scheduled
        self._mark = TriggerMark(0, 0)
        self._points: deque[int] = deque()
        self._pass_ms: int | None = None
        """Scheduled times up to this one are skipped without creating a job."""
        self._is_off = False
        self._status_ms: int | None = None
        self._off_at_ms: int | None = None
        """The last scheduled time that had passed when it was last seen disabled; None: it was enabled."""
        self._broken_until_ms = 0
        self._broken_ms = BROKEN_MS_MIN
        self._failure = Outage(
            log,
            "trigger failed, retrying later",
            "trigger works again",
            trigger=scheduled.name,
            type=scheduled.type,
        )

    def adopt(self, mark: TriggerMark) -> None:
        """Adopt the store's mark, and drop scheduled times up to it: they are not fired again."""
        self._mark = mark
        if self._pass_ms is not None and self._pass_ms <= mark.last_ms:
            self._pass_ms = None
        while self._points and self._points[0] <= mark.last_ms:
            self._points.popleft()

    def reset(self) -> None:
        """Discard plans that depend on the clock."""
        self.check_ms = self._broken_until_ms = 0

    async def find_points(self, now_ms: int) -> None:
        """Compute the due times, or start a call that computes them."""
        self._drop_old(now_ms)
        if self._is_off or self._points or self.call or now_ms < self._broken_until_ms:
            return
        self._switched_on(now_ms)
        instants = (self._mark.began_ms, max(self._mark.last_ms, self._pass_ms or 0), now_ms)
        if self._scheduled.plan.is_foreign:
            self.call = ScheduleCall(self._scheduled.plan, instants, self._answered)
            return
        try:
            found = await self._outlook(instants)
        except Exception as error:  # noqa: BLE001 - one bad schedule must not stop the others
            self._fail(now_ms, error)
            return
        self._adopt_outlook(found)

    def collect(self, now_ms: int) -> None:
        """Process the answer to a call, if it has arrived."""
        call = self.call
        if call is None:
            return
        if not call.answer.done():
            call.is_awaited = True
            if call.is_late:
                self._fail(now_ms, TimeoutError(f"its schedule takes longer than {ANSWER_SECONDS_MAX:g} seconds"))
            return
        self.call, found = None, call.answer.result()
        if isinstance(found, Exception):
            self._fail(now_ms, found)
        elif not call.is_stale:
            self._adopt_outlook(found)
            self._drop_old(now_ms)

    def _adopt_outlook(self, found: Outlook) -> None:
        self._next_ms = found.next_ms
        self._points.extend(point_ms for point_ms in found.due.points if point_ms > self._mark.last_ms)
        self._broken_ms, self._broken_until_ms = BROKEN_MS_MIN, 0
        self._failure.over()
        if found.due.skipped:
            self._log_skipped(found.due)

    def _log_skipped(self, due: Due) -> None:
        log.warning(
            "a trigger missed more scheduled times than its catch-up limit; the oldest are skipped",
            trigger=self._scheduled.name,
            skipped=f"at least {due.skipped}" if due.is_more else due.skipped,
            catches_up_with=len(due.points),
        )

    def _answered(self) -> None:
        """Handle the arrival of an answer: check the trigger now, unless the loop is already waiting for the answer."""
        if self.call is not None and self.call.is_awaited:
            self.check_ms = 0
            self._wake()

    def _drop_old(self, now_ms: int) -> None:
        """Without catch-up, skip scheduled times that could not be fired in time."""
        while not self._scheduled.plan.is_catchup and self._points and self._points[0] < now_ms - GRACE_MS:
            self._points.popleft()

    def _forget_points(self) -> None:
        self._points.clear()
        if self.call is not None:
            self.call.is_stale = True

    def _switched_on(self, now_ms: int) -> None:
        """After the trigger was enabled again, skip the scheduled times missed while it was disabled.

        If the mark has moved, another process has already done this, and may have fired the trigger since.
        """
        if self._off_at_ms is not None and self._off_at_ms == self._mark.last_ms:
            self._pass_ms = max(self._off_at_ms, now_ms - GRACE_MS)
        self._off_at_ms = None

    async def _outlook(self, instants: tuple[int, int, int]) -> Outlook:
        _, last_ms, now_ms = instants
        if now_ms - last_ms > LONG_MS:
            return await asyncio.to_thread(outlook, self._scheduled.plan, *instants)
        return outlook(self._scheduled.plan, *instants)

    def needs_status(self, now_ms: int) -> bool:
        """Whether the trigger's status must be read before it fires."""
        if not self._is_off and not self._points:
            return False
        if self._status_ms is None or now_ms < self._status_ms:
            return True
        holds_ms = self._scheduled.check_every_ms if self._is_off else self._scheduled.cache_ms
        return holds_ms is None or now_ms - self._status_ms >= holds_ms

    def set_status(self, now_ms: int, *, is_off: bool) -> None:
        """Apply the status from the registry."""
        self._status_ms = now_ms
        if is_off != self._is_off:
            self._is_off = is_off
            self.check_ms = 0
        if is_off:
            self._pass_ms = self._off_at_ms = now_ms
            self._forget_points()

    def next_fires(self, most: int) -> list[Fire]:
        """The scheduled times to fire now, oldest first."""
        fires = [] if self._pass_ms is None else [Fire(self._scheduled.name, self._pass_ms, None)]
        return fires + [self._scheduled.fire(point_ms) for point_ms in islice(self._points, most)]

    def plan_check(self, now_ms: int) -> None:
        """Decide when to check the trigger again."""
        if self._is_off:
            self.check_ms = (self._status_ms or 0) + self._scheduled.check_every_ms
        elif self.call is not None and self.call.answer.done():
            self.check_ms = now_ms  # The answer arrived while other triggers were fired.
        elif now_ms < self._broken_until_ms:
            self.check_ms = self._broken_until_ms
        elif self.call is not None:
            # To notice a call that takes too long; its answer is handled by `_answered`.
            self.check_ms = now_ms + PENDING_MS
        elif self._points or self._off_at_ms is not None:
            self.check_ms = now_ms
        else:
            self.check_ms = now_ms + CHECK_MS if self._next_ms is None else self._next_ms

    def _fail(self, now_ms: int, error: Exception) -> None:
        """Mark the trigger as broken, and retry with exponential backoff."""
        self._failure.report(error)
        self._points.clear()
        self.check_ms = self._broken_until_ms = now_ms + self._broken_ms
        self._broken_ms = min(2 * self._broken_ms, BROKEN_MS_MAX)
