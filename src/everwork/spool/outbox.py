"""Offline mode: creates jobs in the engine, or spools them while it is unavailable."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from everwork.aio.loops import BackgroundLoop, TimeLimit, within
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Spooled, Stamp
from everwork.core.outcome import Outcome, Release
from everwork.exceptions import EngineUnavailable, EverworkError, NotDelivered, SpoolFull
from everwork.logs import get_logger
from everwork.spool import contents
from everwork.spool.contents import SpoolStatus
from everwork.spool.courier import AWAY, Courier, SpoolThread, Target
from everwork.spool.file import SpoolCounts, SpoolFile
from everwork.spool.settings import Offline
from everwork.spool.waiting import created_of, until_delivered

log = get_logger("everwork")

CHECK_SECONDS: Final = 0.5
"""How often an idle courier looks for entries left by other processes."""
FLUSH_SECONDS: Final = 1.0
"""How long closing waits to deliver waiting entries."""


class Outbox:
    """A job producer that keeps working while its engine is unavailable. One event loop, and one `create` at a time.

    Each call is numbered, so that a call whose answer was lost can be repeated without creating duplicates. While
    jobs of this producer are waiting in the spool, later jobs queue behind them.
    """

    def __init__(self, offline: Offline, target: Target) -> None:
        self._offline = offline
        self.patience = offline.spool.patience
        self._target = target
        self._thread = SpoolThread(offline)
        self._courier = Courier(offline, self._thread, target)
        self._limit = TimeLimit(self.patience, min(CHECK_SECONDS, self.patience / 4))
        self._loop = BackgroundLoop("everwork-courier", self._tick, CHECK_SECONDS)
        self._producer = secrets.token_hex(8)
        self._number = 0
        self._is_direct = False
        self.is_connected = False
        """Whether the store has ever been open."""
        self.is_refused = False
        """Whether the store failed to create jobs and has created none since."""
        self._last_id = 0
        self._keeping = 0
        self._returning: asyncio.Event | None = None
        """Exists while the last entries are delivered: new jobs wait for this event, then go directly to the store."""
        self._when_connected: list[Callable[[], Awaitable[None]]] = []
        self._forgetting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the spool, and the store if it is available."""
        await self._thread.open()
        if await self._thread.do(SpoolFile.has_waiting):
            self._last_id = await self._thread.do(SpoolFile.last_id)
        try:
            await within(self.patience, self._connect())
            self._is_direct = not self._last_id
        except AWAY as error:
            self._report_away(error)
        self._limit.start()
        self._loop.start()

    async def close(self) -> None:
        """Deliver as many entries as possible right now, and close the spool."""
        await self._loop.abort()
        self._limit.stop()
        if self.is_connected and not self._is_direct:
            with suppress(*AWAY):  # The next process that opens this spool delivers the rest.
                await within(FLUSH_SECONDS, self._courier.deliver())
        while self._forgetting:
            await asyncio.wait(self._forgetting)
        await self._thread.close()

    # Jobs ---------------------------------------------------------------------------------------

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs in the engine; if it is unavailable, spool them."""
        if not jobs:
            return []
        if self._returning is not None:
            try:
                await within(self.patience, self._returning.wait())
            except TimeoutError:
                self._returning = None  # The store does not answer, so the next calls need not wait for it.
        if not self._is_direct:
            return await self._keep(jobs, None)
        self._number += 1
        stamp = Stamp(self._producer, self._number)
        try:
            with self._limit:
                return await self._target.create_stamped(jobs, stamp)
        except AWAY as error:
            self._report_away(error)
            return await self._keep(jobs, stamp)

    async def _keep(self, jobs: Sequence[NewJob], stamp: Stamp | None) -> list[Created]:
        self._is_direct = False
        self._keeping += 1
        try:
            created = await self._thread.do(lambda file: file.keep_jobs(jobs, stamp))
        except SpoolFull:
            raise
        except EngineUnavailable as error:
            raise EngineUnavailable(f"the engine is unavailable, and the job cannot be spooled: {error}") from error
        finally:
            self._keeping -= 1
        self._last_id = max(self._last_id, -created[-1].key)
        self._loop.wake()
        return created

    async def delivered(self, spool_id: str, *, wait: bool) -> Created:
        """The store's answer to a spooled job; waits for one if requested."""

        async def look() -> Spooled:
            found = await self.spooled(spool_id)
            if found is None:
                raise NotDelivered(0, f"job '{spool_id}' is not in the spool {self.path}")
            return found

        if wait:
            return await until_delivered(spool_id, look)
        if (created := created_of(spool_id, await look())) is None:
            raise NotDelivered(0, f"job '{spool_id}' is waiting in the spool: it has no key until it is delivered")
        return created

    async def spooled(self, spool_id: str, tenants: Sequence[str] = ()) -> Spooled | None:
        """The status of a job; None if it is not in the spool, or undelivered and of a tenant not in `tenants`."""
        found = await self._thread.do(lambda file: file.find(spool_id))
        if found is not None and tenants:
            tenant = await self._thread.do(lambda file: file.tenant_of(spool_id))
            return found if tenant in (None, *tenants) else None
        return found

    # Outcomes -----------------------------------------------------------------------------------

    async def keep_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Write outcomes that cannot be reported now to the spool, except releases, whose leases simply expire."""
        kept = [outcome for outcome in outcomes if not isinstance(outcome, Release)]
        if kept:
            await self._thread.do(lambda file: file.keep_outcomes(kept))

    async def kept_attempts(self, attempts: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The attempts, by key and number, whose outcomes are waiting in the spool."""
        return await self._thread.do(lambda file: contents.kept_attempts(file, attempts))

    async def report_outcomes(self) -> None:
        """Return once no outcome is waiting in the spool; raises `EngineUnavailable` if it cannot deliver."""
        while await self._thread.do(SpoolFile.has_outcomes):
            if not await self._courier.report_outcomes():
                await asyncio.sleep(CHECK_SECONDS / 5)

    def forget_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Delete outcomes that were reported after all, in the background."""
        task = asyncio.get_running_loop().create_task(self._thread.do(lambda file: file.forget_outcomes(outcomes)))
        self._forgetting.add(task)
        task.add_done_callback(self._forgotten)

    def _forgotten(self, task: asyncio.Task[None]) -> None:
        self._forgetting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning(
                "reported outcomes could not be deleted from the spool and will be reported again",
                error=str(task.exception()),
            )

    # State --------------------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        """Whether new jobs go to the spool at the moment."""
        return not self._is_direct

    @property
    def path(self) -> str:
        """The file of the spool."""
        return self._offline.spool.path

    async def counts(self) -> SpoolCounts:
        """Counts and sizes of the spool's contents."""
        return await self._thread.do(SpoolFile.counts)

    async def status(self) -> SpoolStatus:
        """The status of the spool, including the numbers of entries that this process has delivered."""
        status = await self._thread.do(contents.status)
        courier = self._courier
        return status._replace(is_away=self.is_away, delivered=courier.delivered, reported=courier.reported)

    async def connected(self) -> None:
        """Wait until the store is open."""
        opened = asyncio.Event()

        async def note() -> None:
            opened.set()

        await self.once_connected(note)
        await opened.wait()

    async def once_connected(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run an action on the store now, or as soon as it is available."""
        if self.is_connected:
            try:
                await act()
            except AWAY:  # The store became unavailable just after it was opened.
                self._when_connected.append(act)
        else:
            self._when_connected.append(act)

    # Internals -------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        if not self.is_connected:
            await self._target.connect()
            self.is_connected = True
        while self._when_connected:
            try:
                await self._when_connected[0]()
            except AWAY:
                raise
            except EverworkError as error:
                # An invalid declaration must not keep jobs waiting in the spool.
                log.error("a declaration made during the outage was refused", error=str(error))
            del self._when_connected[0]

    async def _tick(self) -> bool:
        await self._connect()
        if await self._courier.deliver():
            self.is_refused = False
        if not self._is_direct:
            await self._return_to_direct()
        return False

    async def _return_to_direct(self) -> None:
        self._returning = returning = asyncio.Event()
        try:
            await self._courier.deliver()
            last_id = self._last_id
            is_drained = await self._thread.do(lambda file: file.is_drained(last_id))
            # If this does not hold, a new entry is waiting or being written, and must be delivered first.
            if is_drained and not self._keeping and last_id == self._last_id:
                self._is_direct = True
                log.info("the engine is available again, all spooled entries were delivered", spool=self.path)
        finally:
            returning.set()
            self._returning = None

    def _report_away(self, error: BaseException) -> None:
        self.is_refused = True
        text = str(error) or "no answer"
        log.warning("the engine is unavailable, new jobs go to the spool", spool=self.path, error=text)
