"""The handler side of a worker: runs attempts in the handlers' event loop and reports their outcomes.

Each handler has up to `concurrency` runners; see `everwork.aio.runners`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from everwork.aio import forks
from everwork.aio.loops import first_of
from everwork.aio.runners import Runners, absorb_cancellation
from everwork.core import ending
from everwork.core import outcome as o
from everwork.exceptions import BadConfiguration
from everwork.logs import attempt_here
from everwork.runtime.attempt import Attempt, Stop
from everwork.runtime.calls import ArgumentsCall, HandlerCall, WholeJobCall
from everwork.runtime.context import CompletesInTransaction
from everwork.runtime.handler import Handler
from everwork.runtime.job_log import log_outage, log_stopped
from everwork.runtime.ledger import Ledger
from everwork.runtime.source import Report
from everwork.runtime.stacks import stack_of_error, stack_of_task, stack_of_thread, traceback_of
from everwork.runtime.threads import HandlerThreads

WATCH_SECONDS = 0.1
GRACE_SECONDS = 1.0


class Pool:
    """The attempts of one handler, waiting and running, and its runners."""

    __slots__ = ("call", "inbox", "run_call", "runners", "running")

    def __init__(self, call: HandlerCall, runners: Runners[Attempt]) -> None:
        self.call = call
        self.run_call = call.run
        self.runners = runners
        self.inbox = runners.inbox
        self.running: set[Attempt] = set()


class Executor:
    """Runs attempts in the handlers' event loop."""

    def __init__(
        self,
        send: Callable[[list[Report]], None],
        transactions: CompletesInTransaction | None,
        ledger: Ledger | None = None,
        *,
        outage_pause: Callable[[int], float] = ending.outage_pause,
    ) -> None:
        self._pools: dict[str, Pool] = {}
        self._send = send
        self._transactions = transactions
        self._ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._reports: list[Report] = []
        self._threads = HandlerThreads()
        self._watch: asyncio.TimerHandle | None = None
        self._outage_pause = outage_pause
        self._stopping = asyncio.Event()
        self._is_fork = False
        self.ended = 0
        """How many attempts have been reported."""
        self.owner: asyncio.Task[Any] | None = None
        """The task that owns this executor; cancelling it cancels the runners."""
        forks.reset_in_child(self, Executor._note_fork)

    def _note_fork(self) -> None:
        """Called in the child process of a handler that forked: the child must not report an outcome."""
        self._is_fork = True

    def add(self, handler: Handler) -> None:
        """Add a handler, even while others are running."""
        runners = Runners(self._run, handler.concurrency, handler.name)
        self._pools[handler.name] = Pool(self._new_call(handler), runners)

    def _new_call(self, handler: Handler) -> HandlerCall:
        if handler.arguments is None:
            return WholeJobCall(handler, self._threads)
        if self._transactions is None:
            raise BadConfiguration(f"worker '{handler.name}': a handler with arguments needs a store")
        if handler.arguments.dependencies:
            from everwork.runtime.dependencies.call import DependentCall  # noqa: PLC0415 - most handlers have none

            return DependentCall(handler, handler.arguments, self._threads, self._transactions)
        return ArgumentsCall(handler, handler.arguments, self._threads, self._transactions)

    def accept(self, attempts: Iterable[Attempt]) -> None:
        """Accept attempts; they start as soon as a runner is free."""
        for attempt in attempts:
            if self._stopping.is_set():
                self._release(attempt)
                continue
            pool = self._pools[attempt.handler.name]
            pool.inbox.append(attempt)
            if len(pool.inbox) == 1:
                pool.runners.wake()
        if self._watch is None and not self._stopping.is_set():
            self._watch = self._loop.call_later(WATCH_SECONDS, self._check_timeouts)

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Stop one attempt. A handler in a thread can only be flagged; during a shutdown, most can finish."""
        if attempt.stop is not None or attempt.is_reported:
            return
        if why is Stop.SHUTDOWN and attempt.is_in_thread and self._call_of(attempt).waits_for_threads:
            return
        attempt.stop = why
        log_stopped(attempt, why)
        if attempt.task is not None:
            attempt.task.cancel()

    def stop_soft(self) -> None:
        """Start no more attempts, and release those that are waiting."""
        self._stopping.set()
        for pool in self._pools.values():
            while pool.inbox:
                self._release(pool.inbox.popleft())

    def stop_running(self) -> None:
        """Cancel running attempts; they are released, unless they are past their timeout."""
        now = time.monotonic()
        for pool in self._pools.values():
            for attempt in list(pool.running):
                self.stop(attempt, Stop.TIMED_OUT if attempt.is_overdue(now) else Stop.SHUTDOWN)

    def close(self) -> None:
        """Stop runners and threads. Jobs still running keep their leases until they expire; results are discarded."""
        if self._watch is not None:
            self._watch.cancel()
        for pool in self._pools.values():
            for attempt in pool.running:
                attempt.stop = Stop.LOST
            pool.runners.close()
        self._threads.close()

    def is_runner(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs handlers."""
        return any(task in pool.runners.tasks for pool in self._pools.values())

    @property
    def running(self) -> int:
        """How many attempts are running; can be called from any thread."""
        return sum(len(pool.running) for pool in list(self._pools.values()))

    @property
    def is_handler_thread(self) -> bool:
        """Whether the caller is a handler in a thread."""
        return self._threads.is_current

    # One attempt --------------------------------------------------------------------------------

    async def _run(self, attempt: Attempt, task: asyncio.Task[Any]) -> None:
        """Run one attempt: start it, call the handler, report the outcome, and free the runner."""
        now = time.monotonic()
        if attempt.stop is not None or not attempt.begin(now):
            self._report(attempt, None)
            return
        if self._ledger is not None and attempt.slot is not None:
            self._ledger.begin(attempt.slot, now)
        attempt.task = task
        pool = self._pools[attempt.handler.name]
        running = pool.running
        running.add(attempt)
        attempt_here.set(attempt)
        try:
            outcome = await self._outcome(pool, attempt, now + attempt.timeout)
            if self._is_fork:
                os._exit(0 if isinstance(outcome, o.Complete) else 1)  # The child of a fork is not a worker.
            if attempt.thread is not None and attempt.is_in_thread:
                self._report(attempt, outcome, is_free=False)
                await asyncio.wait([attempt.thread])  # The runner is busy until the thread returns.
                outcome = None
            if attempt.pause is not None and isinstance(outcome, o.Release):
                outcome = await self._after_pause(attempt, attempt.pause, outcome)
            self._report(attempt, outcome)
        except BaseException as error:
            if _is_interrupt(attempt, error):  # It was meant for the handler, which has just ended.
                await absorb_cancellation(task)
                self._report(attempt, self._stopped(attempt))
                return
            # The runner is being stopped, and its handler with it.
            self._report(attempt, self._interrupted(attempt, error))
            raise
        finally:
            attempt_here.set(None)
            attempt.task = None
            running.discard(attempt)

    def _interrupted(self, attempt: Attempt, error: BaseException) -> o.Outcome:
        """The outcome of an attempt whose runner was stopped: released, unless its handler caused the stop."""
        if isinstance(error, asyncio.CancelledError) or attempt.stop is Stop.SHUTDOWN:
            return o.Release(attempt.job.key, attempt.job.attempt)
        return self._failed(attempt, error)

    async def _outcome(self, pool: Pool, attempt: Attempt, ends_at: float) -> o.Outcome | None:
        """The outcome of an attempt, whatever the handler does; `ends_at` is when it times out."""
        outcome: o.Outcome | None
        stack = None
        try:
            outcome = await pool.run_call(attempt)
        except asyncio.CancelledError as error:
            if attempt.stop is None and self._is_torn_down(pool):
                raise
            outcome = None if attempt.stop is not None else self._failed(attempt, error)
            stack = stack_of_error(error) if attempt.stop is Stop.TIMED_OUT else None
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - user code
            outcome = None if _is_interrupt(attempt, error) else self._failed(attempt, error)
            attempt.error = error
        if attempt.stop is None and time.monotonic() > ends_at:
            attempt.stop = Stop.TIMED_OUT  # It has blocked the loop, so the timer could not stop it.
        task = attempt.task
        if attempt.stop is not None or (task is not None and task.cancelling() and not self._is_torn_down(pool)):
            # A handler may have cancelled its own task: the next job must not be affected.
            await absorb_cancellation(task)
        if attempt.stop is not None and (outcome is None or attempt.stop is not Stop.SHUTDOWN):
            outcome = self._stopped(attempt, stack=stack)
        return outcome

    async def _after_pause(self, attempt: Attempt, seconds: float, outcome: o.Release) -> o.Outcome | None:
        """A store is unavailable: wait before releasing the job, so that it is not retried in a tight loop."""
        self._pools[attempt.handler.name].running.discard(attempt)  # The call has ended and cannot time out.
        attempt.task = None
        if self._ledger is not None and attempt.slot is not None:
            self._ledger.end(attempt.slot)
        await first_of(self._stopping, seconds=seconds)
        return outcome if attempt.stop is None else self._stopped(attempt)

    def _is_torn_down(self, pool: Pool) -> bool:
        """Whether the runners themselves are being stopped, by `close` or with their loop."""
        return pool.runners.is_closed or (self.owner is not None and self.owner.cancelling() > 0)

    def _call_of(self, attempt: Attempt) -> HandlerCall:
        return self._pools[attempt.handler.name].call

    def _failed(self, attempt: Attempt, error: BaseException) -> o.Outcome:
        """The outcome of an attempt whose handler raised; if a store was unavailable, the attempt does not count."""
        attempt.error = error
        uncounted = attempt.job.attempt - attempt.job.attempts
        if attempt.stop is None and (outage := ending.outage_of(error, uncounted)) is not None:
            attempt.pause = self._outage_pause(uncounted)
            log_outage(attempt, attempt.pause, outage)
            return o.Release(attempt.job.key, attempt.job.attempt)
        key, number, is_final = attempt.job.key, attempt.job.attempt, attempt.handler.is_final
        return ending.raised(key, number, error, is_final=is_final, traceback_of=traceback_of)

    def _stopped(self, attempt: Attempt, *, goes_on: bool = False, stack: str | None = None) -> o.Outcome | None:
        """The outcome of an attempt that was stopped; None if the engine would not accept one."""
        match attempt.stop:
            case Stop.TIMED_OUT:
                return self._timed_out(attempt, stack, goes_on=goes_on or attempt.is_in_thread)
            case Stop.SHUTDOWN:
                return o.Release(attempt.job.key, attempt.job.attempt)
            case _:
                return None

    def _timed_out(self, attempt: Attempt, stack: str | None, *, goes_on: bool) -> o.Failed:
        """The outcome of an attempt that timed out, with its stack at that time, or now if it is still running."""
        error, more = attempt.error, ""
        if isinstance(error, KeyboardInterrupt):
            more, stack = " and blocked its process until it was interrupted", stack_of_error(error)
        elif goes_on:
            more, stack = self._call_of(attempt).why_unfinished(attempt), self._stack_of(attempt)
        traceback = ending.stack_text(stack)
        if traceback is None and error is not None:
            traceback = traceback_of(error)
        key, number, is_final = attempt.job.key, attempt.job.attempt, attempt.handler.is_final
        return ending.timed_out(key, number, attempt.timeout, more, is_final=is_final, traceback=traceback)

    def _stack_of(self, attempt: Attempt) -> str:
        """The stack of a running handler."""
        if attempt.thread is not None and attempt.is_in_thread:
            return stack_of_thread(self._threads.identity_of(attempt.thread))
        return "" if attempt.task is None else stack_of_task(attempt.task)

    # Reports ------------------------------------------------------------------------------------

    def _release(self, attempt: Attempt) -> None:
        """Release an attempt that has not started."""
        release = o.Release(attempt.job.key, attempt.job.attempt) if attempt.take() and attempt.stop is None else None
        self._report(attempt, release)

    def _report(self, attempt: Attempt, outcome: o.Outcome | None, *, is_free: bool = True) -> None:
        """Report an attempt's outcome, once, and that its runner is free."""
        if attempt.is_reported:
            if not is_free:
                return
            outcome = None
        else:
            self.ended += 1
        attempt.is_reported = True
        if is_free and self._ledger is not None and attempt.slot is not None and attempt.begun_at is not None:
            self._ledger.end(attempt.slot)
        if not self._reports:
            self._loop.call_soon(self._flush)
        self._reports.append((attempt, outcome, is_free))

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        self._send(reports)

    def _check_timeouts(self) -> None:
        """Check all timeouts of this process, with one timer."""
        self._watch = None
        now = time.monotonic()
        has_any = False
        for pool in self._pools.values():
            for attempt in pool.running:
                has_any = True
                if attempt.is_overdue(now):
                    self.stop(attempt, Stop.TIMED_OUT)
                if attempt.stop is not Stop.SHUTDOWN and attempt.is_overdue(now - GRACE_SECONDS):
                    self._give_up(attempt)
            has_any = has_any or bool(pool.inbox)
        if has_any:
            self._watch = self._loop.call_later(WATCH_SECONDS, self._check_timeouts)

    def _give_up(self, attempt: Attempt) -> None:
        """The handler ignored cancellation: report the outcome without waiting, and notify the parent."""
        if not attempt.is_reported:
            self._report(attempt, self._stopped(attempt, goes_on=True), is_free=False)
        if self._ledger is not None and attempt.slot is not None:
            self._ledger.mark_hung(attempt.slot)


def _is_interrupt(attempt: Attempt, error: BaseException) -> bool:
    """Whether a handler that blocked the loop, or seemed to, was interrupted at shutdown."""
    return attempt.stop in (Stop.SHUTDOWN, Stop.TIMED_OUT) and isinstance(error, KeyboardInterrupt)
