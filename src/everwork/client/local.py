"""The way to a store in process: the service itself, with its upkeep."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from everwork.client.requests import in_place
from everwork.codec.json import decode
from everwork.core.leasing import Judged
from everwork.core.outcome import Failed, Outcome, Throw
from everwork.core.queries import JobFilter, Page
from everwork.engines.open import open_engine
from everwork.exceptions import EngineError, EverworkError, InvalidInput, JobNotFound
from everwork.service.access.principal import ANYBODY
from everwork.service.jobs import Jobs
from everwork.service.service import JobService


class LocalJobs(Jobs):
    """The service's desk, for somebody who may do everything."""

    __slots__ = ()

    def __init__(self, service: JobService) -> None:
        super().__init__(service, ANYBODY)

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """End attempts; one that makes no sense spoils the call, and nothing happens."""
        merged = []
        for at, outcome in enumerate(outcomes):
            try:
                merged.append(await self._merged(outcome))
            except InvalidInput as error:
                raise in_place(at, error) from None
        return await super().settle(merged)

    async def settle_each(self, outcomes: Sequence[Outcome]) -> list[Judged | EverworkError]:
        """End attempts, each by itself: what makes no sense is an error in its place, and the others are settled."""
        tried = [await self._tried(outcome) for outcome in outcomes]
        fit = [one for one in tried if not isinstance(one, EverworkError)]
        judged = iter(await super().settle(fit) if fit else ())
        return [one if isinstance(one, EverworkError) else next(judged) for one in tried]

    async def result(self, key: int, timeout: float) -> str | None:
        """The result of a job, once it has one."""
        return await self._service.result(key, timeout)

    async def page(self, wanted: JobFilter, limit: int, cursor: int | None) -> Page:
        """Matching jobs, newest first."""
        return await self.find(wanted, limit, cursor)

    async def _tried(self, outcome: Outcome) -> Outcome | EverworkError:
        try:
            return await self._merged(outcome)
        except EngineError:
            raise
        except EverworkError as error:
            return error

    async def _merged(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Failed | Throw) or outcome.variables is None:
            return outcome
        try:
            return outcome._replace(variables=await self.merged_variables(outcome.key, decode(outcome.variables)))
        except JobNotFound:
            return outcome  # The engine says so for each outcome of the batch.


class LocalTransport:
    """A store that this process opens for itself."""

    def __init__(self, url: str) -> None:
        open_engine(url)  # A URL that makes no sense is refused here, not at the first call.
        self._url = url
        self.service: JobService
        self._desk: LocalJobs

    async def open(self) -> None:
        """Open the store, and begin to keep it in order."""
        self.service = JobService(open_engine(self._url), f"client-{socket.gethostname()}-{os.getpid()}")
        await self.service.open()
        self._desk = LocalJobs(self.service)

    async def close(self) -> None:
        """Close the store."""
        await self.service.close()

    def jobs(self, deadline: float) -> LocalJobs:  # noqa: ARG002 - the client keeps the time
        """The verbs."""
        return self._desk
