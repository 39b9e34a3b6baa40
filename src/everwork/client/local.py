"""The transport to a store in this process: the service itself, with its background loops."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everwork.codec.json import decode
from everwork.core.leasing import Judged
from everwork.core.outcome import Failed, Outcome, Throw
from everwork.engines.open import open_engine
from everwork.exceptions import EngineError, EverworkError, JobNotFound
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import IN_PROCESS
from everwork.spool.settings import Offline, Spool

if TYPE_CHECKING:
    from everwork.client.client import Client
    from everwork.client.stream import Stream


class LocalJobs(Jobs, is_guarded=False):
    """The service's operations, for a caller with all permissions."""

    __slots__ = ()

    def __init__(self, service: JobService) -> None:
        super().__init__(service, IN_PROCESS)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; if one outcome is invalid, the call fails and nothing is settled."""
        merged = [await self._merged(outcome, index) for index, outcome in enumerate(outcomes)]
        return await super().settle(merged)

    async def settle_each(self, outcomes: Sequence[Outcome], *, is_late: bool = False) -> list[Judged | EverworkError]:
        """End attempts independently: an invalid outcome gets an error as its result, and the others are settled."""
        settle = super().settle_late if is_late else super().settle
        merged = [await self._merged_or_error(outcome) for outcome in outcomes]
        valid = [one for one in merged if not isinstance(one, EverworkError)]
        judged = iter(await settle(valid) if valid else ())
        return [one if isinstance(one, EverworkError) else next(judged) for one in merged]

    async def _merged_or_error(self, outcome: Outcome) -> Outcome | EverworkError:
        try:
            return await self._merged(outcome)
        except EngineError:
            raise
        except EverworkError as error:
            return error

    async def _merged(self, outcome: Outcome, index: int | None = None) -> Outcome:
        """The outcome with the merged variables for the next attempt; errors name the outcome's index, if given."""
        if not isinstance(outcome, Failed | Throw) or outcome.variables is None:
            return outcome
        field = "variables" if index is None else f"outcomes[{index}].variables"
        try:
            merged = await self.merged_variables(outcome.key, decode(outcome.variables), field)
            return outcome._replace(variables=merged)
        except JobNotFound:
            return outcome  # The engine reports missing jobs per outcome.


class LocalTransport:
    """A store that this process opens itself."""

    def __init__(self, url: str, spool: str | Spool | None = None) -> None:
        open_engine(url)  # Refuse an invalid URL here, not on the first call.
        self._url = url
        self._offline = Offline.of(spool, url)
        self.service: JobService
        self._jobs: LocalJobs

    async def open(self) -> None:
        """Open the store, and start its background loops."""
        holder = f"client-{socket.gethostname()}-{os.getpid()}"
        self.service = JobService(open_engine(self._url), holder, offline=self._offline)
        await self.service.open()
        self._jobs = LocalJobs(self.service)

    async def close(self) -> None:
        """Close the store."""
        await self.service.close()

    def jobs(self, deadline: float) -> LocalJobs:  # noqa: ARG002 - the client enforces it
        """The operations."""
        return self._jobs

    def stream(self, client: Client, worker: str, lease_ms: int) -> Stream:
        """One worker's stream of jobs."""
        from everwork.client.local_stream import LocalStream  # noqa: PLC0415 - loaded on demand

        return LocalStream(client, worker, lease_ms)
