"""Jobs leased to a worker outside of a step's reply: handed over by a create, or by a step whose reply was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from everwork.core.job import LeasedJob
from everwork.core.leasing import Receiver
from everwork.core.limits import DEFAULT_GROUP
from everwork.exceptions import EngineError
from everwork.runtime.capacity import AttemptId
from everwork.runtime.handler import QueueKey
from everwork.runtime.source import JobStore

RELEASED_MAX: Final = 10_000


class HandOver:
    """Parks a worker's demands, takes the jobs that creates hand over, and releases those that were lost in transit.

    Only if no other process has the worker's name: their jobs could not be distinguished. Ticks do not park either.
    """

    def __init__(
        self,
        store: JobStore,
        worker: str,
        *,
        owns_name: bool,
        parks: bool,
        take: Callable[[LeasedJob], bool],
        release: Callable[[Iterable[AttemptId]], None],
        known: Callable[[], set[AttemptId]],
        wake: Callable[[], None],
    ) -> None:
        """`take`: runs a job, or returns False if there is no room; `known`: the attempts that are not lost."""
        self._store = store
        self._worker = worker
        self._owns_name = owns_name
        self._parks = owns_name and parks
        self._take = take
        self._release = release
        self._known = known
        self._wake = wake
        self._types: set[str] = set()
        self._may_have_orphans = False
        self._released: set[AttemptId] = set()
        """Attempts that were released because they were unknown here; their jobs may still arrive."""

    @property
    def is_parked(self) -> bool:
        """Whether a create may hand a job over."""
        return bool(self._types)

    @property
    def must_unpark(self) -> bool:
        """Whether jobs may have been lost in transit."""
        return self._may_have_orphans

    def receiver(self, key: QueueKey, *, may_park: bool) -> Receiver | None:
        """The receiver for a demand on this queue that may be parked, or that withdraws what was parked before."""
        if not self._parks or key.group != DEFAULT_GROUP:
            return None
        if may_park:
            self._types.add(key.type)
        return self if key.type in self._types else None

    def handed(self, job: LeasedJob) -> None:
        """Run a job that its create has leased to this worker; release it if there is no room."""
        attempt = job.key, job.attempt
        if attempt not in self._released and not self._take(job):
            self._release([attempt])
            self._wake()

    def lost(self) -> None:
        """Jobs that were handed over may not arrive."""
        self._may_have_orphans = True
        self._wake()

    async def unpark(self, *, is_last: bool) -> None:
        """Withdraw the parked demands, then release the jobs that were handed over and have not arrived.

        If the store is unavailable, this is tried again later, unless `is_last`: the demands expire soon.
        """
        self._may_have_orphans = False  # Unless jobs get lost meanwhile.
        try:
            await self._store.unpark(self._worker, sorted(self._types))
            await self._release_orphans()
        except EngineError:
            self._may_have_orphans = not is_last
            if not is_last:
                return
        self._types.clear()

    async def release_orphans(self) -> bool:
        """Release jobs that were leased by a step whose reply was lost; False if the store is unavailable."""
        if self._owns_name:
            try:
                await self._release_orphans()
            except EngineError:
                return False
        return True

    async def _release_orphans(self) -> None:
        """Release the orphans: attempts that the store has leased to this worker, and that are unknown here."""
        known = self._known()
        held = await self._store.held(self._worker)
        # Not the jobs of an earlier runtime whose outcomes are in the spool: their leases may have been renewed.
        orphans = self._without(known, await self._store.unkept(self._without(known, held)))
        orphans = self._without(self._known(), orphans)
        self._release(orphans)
        if len(self._released) > RELEASED_MAX:
            self._released.clear()
        self._released.update(orphans)

    @staticmethod
    def _without(known: set[AttemptId], attempts: Iterable[AttemptId]) -> Sequence[AttemptId]:
        return [one for one in attempts if one not in known]
