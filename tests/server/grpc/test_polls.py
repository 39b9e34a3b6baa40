"""Long polls: when they answer, when they end, and that nothing is stranded by a caller who has gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import grpc.aio
import pytest
from grpc import StatusCode

from everwork.core.limits import KEY_MAX
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import CallTimeout
from everwork.proto import jobs_pb2
from everwork.server.grpc.delivery import MESSAGE_BYTES_MAX
from everwork.server.grpc.jobs_api import JobsApi
from everwork.service.access.principal import ANYBODY
from everwork.service.jobs import Jobs
from tests.app.waiting import SOON_S, until
from tests.server.grpc.conftest import OpenPlace
from tests.server.grpc.place import SECONDS, TYPE, Place


def polled(place: Place, timeout_s: float = SECONDS, **fields: Any) -> Any:
    """A poll that has begun."""
    request = jobs_pb2.ActivateJobsRequest(**{"type": TYPE, "worker": "w1", **fields})
    return place.jobs.ActivateJobs(request, metadata=place.metadata, timeout=timeout_s)


async def answered(call: Any) -> list[Any]:
    return [message async for message in call]


@pytest.mark.every_engine
async def test_a_waiting_poll_answers_as_soon_as_there_is_a_job(place: Place) -> None:
    waiting = asyncio.ensure_future(place.activate())
    await until(lambda: place.service.waiting(TYPE))
    key = await place.create()
    assert [job.job_key for job in await waiting] == [key]


async def test_a_poll_without_jobs_ends_well_and_without_a_message(sqlite_place: Place) -> None:
    call = polled(sqlite_place)
    assert await answered(call) == []
    assert await call.code() is StatusCode.OK


async def test_a_poll_ends_well_before_the_callers_deadline(open_place: OpenPlace) -> None:
    place = await open_place(long_poll_seconds=300)
    call = polled(place, timeout_s=1.0)
    assert await answered(call) == []
    assert await call.code() is StatusCode.OK


async def test_a_poll_takes_no_more_than_it_asks_for(place: Place) -> None:
    for _ in range(12):
        await place.create()
    assert len(await place.activate(max_jobs_to_activate=5)) == 5
    assert len(await place.activate(max_jobs_to_activate=100)) == 7


async def test_ten_jobs_are_the_default(sqlite_place: Place) -> None:
    for _ in range(12):
        await sqlite_place.create()
    assert len(await sqlite_place.activate()) == 10


async def test_no_message_is_over_3_mib(sqlite_place: Place) -> None:
    keys = [await sqlite_place.create(variables={"a": "x" * 1_000_000}) for _ in range(7)]
    messages = await sqlite_place.poll()
    assert [job.job_key for message in messages for job in message.jobs] == keys
    assert all(message.success and message.ByteSize() <= MESSAGE_BYTES_MAX for message in messages)
    assert len(messages) == 3


async def test_a_group_and_tenants_are_asked_for_by_name(place: Place) -> None:
    await place.service._engine.add_group(TYPE, "audit")
    key = await place.create(tenant_id="acme")
    assert await place.activate(tenant_ids="umbrella, other") == []
    [copy] = await place.activate(group="audit", tenant_ids=" acme ,umbrella")
    [job] = await place.activate(tenant_ids="acme")
    assert (job.job_key, (await place.job(copy.job_key)).copy_of) == (key, int(key))


async def test_an_open_breaker_is_named_with_the_time_it_ends(place: Place) -> None:
    await place.create()
    await place.service._engine.open_breaker(TYPE, 3_600_000)
    [message] = await place.poll()
    info = next(info for info in await place.service._engine.types() if info.type == TYPE)
    until_ms = info.breaker_open_until_ms or 0
    assert not message.success
    assert message.error_message.startswith(f"type '{TYPE}' is stopped by its circuit breaker")
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(until_ms / 1000)) in message.error_message


async def test_a_type_that_is_resumed_in_time_answers_the_poll(open_place: OpenPlace) -> None:
    place = await open_place(long_poll_seconds=30)
    key = await place.create()
    await place.service._engine.pause(TYPE, True)
    waiting = asyncio.ensure_future(place.activate())
    await until(lambda: place.service.waiting(TYPE))
    await place.service._engine.pause(TYPE, False)
    assert [job.job_key for job in await waiting] == [key]


async def test_more_pollers_than_allowed_are_sent_away_with_a_hint(open_place: OpenPlace) -> None:
    place = await open_place(long_poll_seconds=30, pollers_per_type=2)
    calls = [polled(place) for _ in range(2)]
    await until(lambda: place.service.waiting(TYPE) == 2)
    call = polled(place)
    assert await call.code() is StatusCode.RESOURCE_EXHAUSTED
    assert "retry-after-ms" in [name for name, _ in await call.trailing_metadata()]
    assert await place.poll(type="another", timeout_s=1.0) == []
    for open_call in calls:
        open_call.cancel()


async def test_a_stopping_server_ends_its_polls_at_once_without_a_message(open_place: OpenPlace) -> None:
    place = await open_place(long_poll_seconds=300)
    await place.create(job_type="paused")
    await place.service._engine.pause("paused", True)
    calls = [polled(place), polled(place, type="paused")]
    await until(lambda: place.service.waiting(TYPE) and place.service.waiting("paused"))
    await asyncio.wait_for(place.door.stop(SECONDS), SOON_S)
    assert [await answered(call) for call in calls] == [[], []]
    assert [await call.code() for call in calls] == [StatusCode.OK, StatusCode.OK]


async def test_a_stopping_server_finishes_what_is_in_flight(open_place: OpenPlace) -> None:
    place = await open_place()
    keys = [await place.create() for _ in range(20)]
    jobs = await place.activate(max_jobs_to_activate=100)
    calls = [asyncio.ensure_future(place.call("CompleteJob", job_key=job.job_key)) for job in jobs]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await place.door.stop(SECONDS)
    for call in calls:
        if await fate(call):
            assert (await place.job(keys[calls.index(call)])).state is State.COMPLETED


async def fate(call: asyncio.Future[Any]) -> bool:
    """Whether a call was answered; one that came too late was not taken on at all."""
    with suppress(grpc.aio.AioRpcError):
        return bool((await call).success)
    return False


@pytest.mark.every_engine
async def test_a_caller_who_goes_away_strands_nothing(place: Place) -> None:
    call = polled(place)
    await until(lambda: place.service.waiting(TYPE))
    call.cancel()
    await until(lambda: not place.service.waiting(TYPE))
    key = await place.create()
    assert [job.job_key for job in await place.activate()] == [key]


async def test_a_reader_who_reads_nothing_gets_no_more_than_the_connection_holds(sqlite_place: Place) -> None:
    """What does not fit into the connection's window is not written, and comes back when the caller goes."""
    place = sqlite_place
    for _ in range(30):
        await place.create(variables={"a": "x" * 1_000_000})
    call = polled(place, max_jobs_to_activate=30, timeout=3_600_000)
    await call.read()
    await until(lambda: leased(place))
    call.cancel()

    async def some_came_back() -> bool:
        return len(await leased(place)) < 30

    await until(some_came_back)


async def leased(place: Place) -> dict[int, int]:
    """The jobs that somebody holds, and the attempts."""
    wanted = JobFilter(states=frozenset([State.PROCESSING]))
    found: dict[int, int] = {}
    cursor: int | None = KEY_MAX
    while cursor is not None:
        page = await place.service.find(wanted, 1_000, cursor)
        found |= {job.key: job.attempt for job in page.jobs}
        cursor = page.next
    return found


class Late:
    """A call whose deadline has passed before its turn came."""

    def time_remaining(self) -> float:
        return 0.0


async def test_a_deadline_that_has_passed_leases_nothing(sqlite_place: Place) -> None:
    key = await sqlite_place.create()
    api = JobsApi(sqlite_place.door.gateway, 30)
    context: Any = Late()
    with pytest.raises(CallTimeout):
        await api.activate(
            Jobs(sqlite_place.service, ANYBODY), jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w"), context
        )
    [job] = await sqlite_place.activate()
    assert (job.job_key, job.attempt) == (key, 1)
