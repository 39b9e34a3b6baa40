"""Offline mode of a remote client: jobs and outcomes go to the server, or to the spool while it is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from everwork.aio.batcher import Batcher
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged, Spooled, Stamp
from everwork.core.limits import CREATE_BATCH_MAX
from everwork.core.outcome import Outcome
from everwork.exceptions import EngineUnavailable, EverworkError, NotFound
from everwork.spool.courier import call_seconds
from everwork.spool.outbox import Outbox
from everwork.spool.settings import Offline

if TYPE_CHECKING:
    from everwork.client.remote import RemoteJobs, RemoteTransport


class RemoteTarget:
    """A server as the target of a spool."""

    def __init__(self, patience: float, transport: RemoteTransport, channel: grpc.aio.Channel) -> None:
        self.patience = patience
        self._transport = transport
        self._channel = channel

    async def connect(self) -> None:
        """Connect to the server."""
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                raise EngineUnavailable("the server cannot be reached")
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)

    async def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> list[Created]:
        """Create jobs on the server; repeating the call creates no duplicates."""
        with _unknown_as_away():
            return await self._jobs().create(jobs, stamp)

    async def settle_late(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Report attempts that ended while the server was unavailable."""
        with _unknown_as_away():
            return await self._jobs().settle_late(outcomes)

    def _jobs(self) -> RemoteJobs:
        return self._transport.jobs(asyncio.get_running_loop().time() + call_seconds(self.patience))


class RemoteOutbox(RemoteTarget):
    """The spool of one client, and its delivery to the server."""

    def __init__(self, offline: Offline, transport: RemoteTransport, channel: grpc.aio.Channel) -> None:
        super().__init__(offline.spool.patience, transport, channel)
        self.spool = Outbox(offline, self)
        self._creates: Batcher[NewJob, Created] = Batcher(self.spool.create, CREATE_BATCH_MAX)

    async def open(self) -> None:
        """Open the spool and try to reach the server."""
        try:
            await self.spool.open()
        except BaseException:
            await self.spool.close()
            raise
        self._creates.open()

    async def close(self) -> None:
        """Deliver as many entries as possible now, and close the spool."""
        self._creates.close()
        await self.spool.close()

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs, or spool them. Even if the caller stops waiting, each job is either created or spooled."""
        promise: asyncio.Future[list[Created]] = asyncio.get_running_loop().create_future()
        self._creates.put(jobs, promise)
        return await promise

    async def spooled(self, spool_id: str) -> Spooled:
        """The state of a job in this spool."""
        found = await self.spool.spooled(spool_id)
        if found is None:
            raise NotFound("spooled job", spool_id)
        return found


@contextmanager
def _unknown_as_away() -> Iterator[None]:
    """Treat a failure that is neither a refusal nor an outage as an outage: the jobs' state is unknown, so resend."""
    try:
        yield
    except EverworkError as error:
        if type(error) is EverworkError:
            raise EngineUnavailable(str(error)) from error
        raise
