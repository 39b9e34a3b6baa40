"""Delivers the entries of a spool: outcomes first, then jobs in order. One process at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from everwork.aio.loops import within
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged, Stamp, Verdict
from everwork.core.outcome import Outcome
from everwork.core.texts import error_text
from everwork.exceptions import (
    CallTimeout,
    EngineBusy,
    EngineError,
    EngineUnavailable,
    InvalidInput,
    TooManyRequests,
    Unauthenticated,
)
from everwork.spool.entries import Moment, SpooledBatch
from everwork.spool.file import MAY_EXIST, SpoolFile
from everwork.spool.settings import Offline

BATCH_JOBS: Final = 500
BATCH_BYTES: Final = 4 * 1_048_576
OUTCOMES: Final = 500
CALL_SECONDS_MIN: Final = 10.0
"""The minimum time a store is given for a whole batch, however short the patience for one job is."""
AWAY: Final = (EngineUnavailable, EngineBusy, CallTimeout, TimeoutError)
"""The errors of an unavailable engine; after one of them, it is unknown whether the request was carried out."""
NOT_NOW: Final = (*AWAY, EngineError, Unauthenticated, TooManyRequests)
"""All errors that mean nothing can be delivered right now."""
_REFUSED: Final = {
    Verdict.NOT_FOUND: "the job no longer exists",
    Verdict.WRONG_STATE: "the job has already ended",
    Verdict.LEASE_LOST: "another attempt of the job has started",
}

T = TypeVar("T")


class EntriesRefused(Exception):
    """The store refuses these entries, although it accepts others; `error` is the reason, of any class."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error

    @property
    def reason(self) -> str:
        """The reason to store with the refused entries."""
        return error_text(str(self.error) or type(self.error).__name__)


class Target(Protocol):
    """The store that a spool delivers to, directly or through a server."""

    async def connect(self) -> None:
        """Open the store."""
        ...

    def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> Coroutine[Any, Any, list[Created]]:
        """Create jobs, all or none, only once even if the call is repeated."""
        ...

    async def settle_late(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle attempts; an expired lease counts as held if no other attempt has started."""
        ...


class SpoolThread:
    """Runs the file operations of a spool in their own thread, for one event loop."""

    def __init__(self, offline: Offline) -> None:
        self._offline = offline
        self._thread = ThreadPoolExecutor(1, "everwork-spool")
        self._file: SpoolFile | None = None

    async def open(self) -> None:
        """Open the file."""
        self._file = await self._run(partial(SpoolFile, self._offline.spool, self._offline.store))

    async def do(self, use: Callable[[SpoolFile], T]) -> T:
        """Run an operation on the file."""
        if self._file is None:
            raise EngineUnavailable("the spool is not open")
        return await self._run(partial(use, self._file))

    async def close(self) -> None:
        """Close the file after running calls have finished."""
        if self._file is not None:
            await self._run(self._file.close)
            self._file = None
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class Courier:
    """Delivers the entries of a spool, including those of other processes."""

    def __init__(self, offline: Offline, thread: SpoolThread, target: Target) -> None:
        self._spool = offline.spool
        self._thread = thread
        self._target = target
        self._producer = secrets.token_hex(8)
        """The courier's own producer name: if the file stored it, a copy of the file would repeat its numbers."""
        self._number = 0
        self._jobs_max = BATCH_JOBS
        self.delivered = 0
        """How many jobs were delivered."""
        self.reported = 0
        """How many outcomes were reported."""

    async def deliver(self) -> bool:
        """Deliver waiting entries; False if another process is delivering. Raises `EngineUnavailable` on failure."""
        if not await self._thread.do(SpoolFile.has_waiting):
            return True
        turn = Turn(self._spool.path)
        if not turn.take():
            return False
        try:
            await self._thread.do(SpoolFile.require_store)
            last_id = await self._thread.do(SpoolFile.last_id)
            await self._report_outcomes()
            while not await self._thread.do(lambda file: file.is_drained(last_id)):
                await self._deliver_batch()
        finally:
            turn.give_back()
        return True

    async def report_outcomes(self) -> bool:
        """Report waiting outcomes; False if another process is delivering. Raises `EngineUnavailable` on failure."""
        turn = Turn(self._spool.path)
        if not turn.take():
            return False
        try:
            await self._thread.do(SpoolFile.require_store)
            await self._report_outcomes()
        finally:
            turn.give_back()
        return True

    async def _deliver_batch(self) -> None:
        while await self._thread.do(lambda file: file.set_unfit_aside(BATCH_JOBS)):
            pass
        self._number += 1
        fresh = Stamp(self._producer, self._number)
        batch = await self._thread.do(lambda file: file.next_batch(fresh, self._jobs_max, BATCH_BYTES))
        if batch is None:
            return
        now, max_age = Moment.now(), self._spool.max_age
        if all(job.since.elapsed_ms(now) > max_age * 1000 for job in batch.jobs):
            await self._put_aside(batch, f"not delivered within {max_age:g} s; {MAY_EXIST}", in_doubt=True)
            return
        jobs = [job.due(now) for job in batch.jobs]
        try:
            created = await self._in_time(self._target.create_stamped(jobs, batch.stamp))
        except EntriesRefused as refused:
            await self._refused(batch, refused)
            return
        await self._thread.do(lambda file: file.delivered(batch, created))
        self._jobs_max = min(BATCH_JOBS, self._jobs_max * 2)
        self.delivered += len(batch.jobs)

    async def _refused(self, batch: SpooledBatch, refused: EntriesRefused) -> None:
        """Set aside a job that the store refuses; if the batch was larger, send half as many jobs next time."""
        if isinstance(refused.error, InvalidInput) and refused.error.field == "stamp":
            await self._put_aside(batch, f"superseded by later jobs from its producer; {MAY_EXIST}", in_doubt=True)
            return
        if len(batch.jobs) == 1:
            await self._put_aside(batch, refused.reason)
            return
        await self._thread.do(lambda file: file.unstamp(batch))
        self._jobs_max = len(batch.jobs) // 2

    async def _put_aside(self, batch: SpooledBatch, reason: str, *, in_doubt: bool = False) -> None:
        ids = [job.id for job in batch.jobs]
        await self._thread.do(lambda file: file.set_aside(ids, reason, in_doubt=in_doubt))

    async def _report_outcomes(self) -> None:
        """Report outcomes of attempts that ended while the engine was unavailable."""
        while await self._thread.do(SpoolFile.has_outcomes):
            outcomes = await self._thread.do(lambda file: file.waiting_outcomes(OUTCOMES, BATCH_BYTES))
            if outcomes:  # If empty, none of them was readable.
                await self._report(outcomes)

    async def _report(self, outcomes: Sequence[Outcome]) -> None:
        """Report outcomes; if a batch is refused, report them one by one and set aside those that are refused."""
        try:
            judged = await self._in_time(self._target.settle_late(outcomes))
        except EntriesRefused as refused:
            if len(outcomes) == 1:
                await self._put_outcome_aside(outcomes[0], refused.reason)
                return
            for outcome in outcomes:
                await self._report([outcome])
        else:
            await self._note(outcomes, judged)

    async def _note(self, outcomes: Sequence[Outcome], judged: Sequence[Judged]) -> None:
        accepted = [outcome for outcome, one in zip(outcomes, judged, strict=True) if one.ok]
        await self._thread.do(lambda file: file.forget_outcomes(accepted))
        self.reported += len(accepted)
        for outcome, one in zip(outcomes, judged, strict=True):
            if not one.ok:
                await self._put_outcome_aside(outcome, _REFUSED[one.verdict])

    async def _put_outcome_aside(self, outcome: Outcome, reason: str) -> None:
        await self._thread.do(lambda file: file.set_outcome_aside(outcome.key, outcome.attempt, reason))

    async def _in_time(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a call with a timeout; errors that mean the store accepts nothing now raise `EngineUnavailable`."""
        try:
            return await within(call_seconds(self._spool.patience), call)
        except EngineUnavailable:
            raise
        except NOT_NOW as error:
            raise EngineUnavailable(str(error) or "the engine is not responding") from error
        except Exception as error:
            raise EntriesRefused(error) from error


class Turn:
    """The right to deliver: a lock file next to the spool, released when its process ends."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}.lock"
        self._file: int | None = None

    def take(self) -> bool:
        """Take the lock; False if another process has it."""
        try:
            file = self._open()
        except OSError as error:
            raise EngineUnavailable(f"spool: cannot open {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        _held.add(self)
        return True

    def _open(self) -> int:
        """Open the lock file; a new one gets the permissions of the spool."""
        flags = os.O_RDWR | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            return os.open(self._path, flags)
        try:
            file = os.open(self._path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:  # Another process created the file first.
            return os.open(self._path, flags)
        with suppress(OSError):
            spool = Path(self._path.removesuffix(".lock")).stat()
            os.fchmod(file, spool.st_mode & 0o666)
            if os.geteuid() == 0:
                os.fchown(file, spool.st_uid, spool.st_gid)
        return file

    def give_back(self) -> None:
        """Release the lock."""
        if self._file is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self.close()

    def close(self) -> None:
        """Close the file; in a forked child, the lock stays with the parent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


_held: weakref.WeakSet[Turn] = weakref.WeakSet()


def _close_in_child() -> None:
    # A forked child shares the open file, so it would keep the lock if its parent died.
    for turn in list(_held):
        turn.close()


os.register_at_fork(after_in_child=_close_in_child)


def call_seconds(patience: float) -> float:
    """How long a call that delivers a batch may take."""
    return max(2 * patience, CALL_SECONDS_MIN)
