"""The Zeebe gateway, as its clients see it; real ones are tested by programs of their own."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from grpc import StatusCode

from everwork.core.states import State
from everwork.proto import gateway_pb2 as pb
from tests.app.waiting import until
from tests.server.grpc.conftest import OpenPlace
from tests.server.grpc.place import SECONDS, TYPE, Place, refused


async def call(place: Place, name: str, **fields: Any) -> Any:
    """The answer to one call of the gateway."""
    request = getattr(pb, f"{name}Request")(**fields)
    return await getattr(place.zeebe, name)(request, metadata=place.metadata, timeout=SECONDS)


async def poll(place: Place, **fields: Any) -> list[Any]:
    """The jobs of one ActivateJobs."""
    usual: dict[str, Any] = {"type": TYPE, "worker": "z1", "timeout": 60_000, "maxJobsToActivate": 32}
    request = pb.ActivateJobsRequest(**{**usual, "requestTimeout": -1, **fields})
    messages = place.zeebe.ActivateJobs(request, metadata=place.metadata, timeout=SECONDS)
    return [job async for message in messages for job in message.jobs]


async def activated(place: Place, **fields: Any) -> int:
    """The key of a new job that a Zeebe worker holds."""
    key = await place.create(**fields)
    [job] = await poll(place)
    assert job.key == int(key)
    return int(key)


async def test_a_job_comes_with_json_objects_and_the_fields_of_its_process(place: Place) -> None:
    key = await place.create(
        variables_json='{"n": 1}',
        custom_headers={"h": "1"},
        retries=4,
        process_instance_key="2251799813685249",
        bpmn_process_id="order",
        process_definition_version="3",
        process_definition_key="not a number",
        element_id="task",
    )
    [job] = await poll(place)
    assert (job.key, job.type, job.worker, job.retries, job.tenantId) == (int(key), TYPE, "z1", 4, "<default>")
    assert (json.loads(job.variables), json.loads(job.customHeaders)) == ({"n": 1}, {"h": "1"})
    assert (job.processInstanceKey, job.bpmnProcessId, job.elementId) == (2251799813685249, "order", "task")
    assert (job.processDefinitionVersion, job.processDefinitionKey, job.elementInstanceKey) == (3, 0, 0)
    assert job.deadline == (await place.job(key)).lease_until_ms


async def test_a_job_without_anything_still_has_json_objects(sqlite_place: Place) -> None:
    await sqlite_place.create()
    [job] = await poll(sqlite_place)
    assert (job.variables, job.customHeaders) == ("{}", "{}")


async def test_only_the_variables_asked_for_are_fetched(sqlite_place: Place) -> None:
    await sqlite_place.create(variables={"a": "1", "b": "2"})
    [job] = await poll(sqlite_place, fetchVariable=["b"])
    assert json.loads(job.variables) == {"b": "2"}


async def test_a_completed_job_is_gone_to_zeebe(place: Place) -> None:
    key = await activated(place)
    await call(place, "CompleteJob", jobKey=key, variables='{"ok": true}')
    code, details = await refused(call(place, "FailJob", jobKey=key, retries=1))
    assert ((await place.job(str(key))).state, (await place.job(str(key))).result) == (State.COMPLETED, '{"ok":true}')
    assert (code, details) == (StatusCode.NOT_FOUND, f"Job '{key}' not found")


@pytest.mark.parametrize("name", ["CompleteJob", "FailJob", "ThrowError", "UpdateJobTimeout"])
async def test_a_job_that_is_not_activated_is_in_the_wrong_state(place: Place, name: str) -> None:
    key = int(await place.create())
    more = {"timeout": 1_000} if name == "UpdateJobTimeout" else {}
    code, details = await refused(call(place, name, jobKey=key, **more))
    assert (code, details) == (StatusCode.FAILED_PRECONDITION, f"Job '{key}' is not activated")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("CompleteJob", {}),
        ("FailJob", {}),
        ("FailJob", {"variables": '{"a": 1}'}),
        ("ThrowError", {}),
        ("UpdateJobRetries", {"retries": 1}),
        ("UpdateJobTimeout", {"timeout": 1}),
    ],
)
async def test_a_job_that_there_is_not_is_not_found(sqlite_place: Place, name: str, more: dict[str, Any]) -> None:
    code, _ = await refused(call(sqlite_place, name, jobKey=123_456, **more))
    assert code is StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "more"),
    [("CompleteJob", {}), ("UpdateJobRetries", {"retries": 1}), ("UpdateJobTimeout", {"timeout": 1})],
)
async def test_a_cancelled_job_is_not_found(sqlite_place: Place, name: str, more: dict[str, Any]) -> None:
    key = await activated(sqlite_place)
    await sqlite_place.call("CancelJob", job_key=str(key))
    code, _ = await refused(call(sqlite_place, name, jobKey=key, **more))
    assert code is StatusCode.NOT_FOUND


@pytest.mark.every_engine
async def test_a_failure_sets_retries_backoff_and_variables(place: Place) -> None:
    key = await activated(place, variables={"a": "1"})
    await call(place, "FailJob", jobKey=key, retries=7, errorMessage="no", retryBackOff=60_000, variables='{"b": 2}')
    job = await place.job(str(key))
    assert (job.state, job.retries, job.last_error) == (State.PENDING, 7, "no")
    assert json.loads(job.variables) == {"a": "1", "b": 2}
    assert job.run_at_ms > job.created_at_ms + 50_000


async def test_a_failure_without_retries_left_is_for_good(sqlite_place: Place) -> None:
    key = await activated(sqlite_place)
    await call(sqlite_place, "FailJob", jobKey=key, retries=-1)
    assert (await sqlite_place.job(str(key))).state is State.FAILED


async def test_an_error_is_thrown_with_its_code_or_without_one(sqlite_place: Place) -> None:
    first, second = await activated(sqlite_place), await activated(sqlite_place)
    await call(sqlite_place, "ThrowError", jobKey=first, errorCode="E1", errorMessage="no", variables='{"v": 1}')
    await call(sqlite_place, "ThrowError", jobKey=second, errorMessage="no code")
    job = await sqlite_place.job(str(first))
    assert (job.state, job.error_code, job.last_error, job.variables) == (State.FAILED, "E1", "no", '{"v":1}')
    assert (await sqlite_place.job(str(second))).state is State.FAILED


async def test_retries_and_timeouts_can_be_changed(place: Place) -> None:
    key = await activated(place)
    await call(place, "UpdateJobRetries", jobKey=key, retries=42)
    before = (await place.job(str(key))).lease_until_ms or 0
    await call(place, "UpdateJobTimeout", jobKey=key, timeout=3_600_000)
    job = await place.job(str(key))
    assert job.retries == 42
    assert (job.lease_until_ms or 0) > before + 3_000_000


async def test_an_empty_poll_ends_within_the_time_that_was_asked_for(open_place: OpenPlace) -> None:
    place = await open_place(long_poll_seconds=300)
    began = time.monotonic()
    assert await poll(place, requestTimeout=200) == []
    assert await poll(place, requestTimeout=-1) == []
    assert 0.2 <= time.monotonic() - began < SECONDS


async def test_a_poll_that_names_no_time_waits_for_work(open_place: OpenPlace) -> None:
    place = await open_place(long_poll_seconds=300)
    waiting = asyncio.ensure_future(poll(place, requestTimeout=0))
    await until(lambda: place.service.waiting(TYPE))
    key = await place.create()
    assert [job.key for job in await waiting] == [int(key)]


async def test_a_worker_without_a_name_has_one(sqlite_place: Place) -> None:
    await sqlite_place.create()
    [job] = await poll(sqlite_place, worker="")
    assert job.worker == "default"


async def test_the_topology_is_this_server(sqlite_place: Place) -> None:
    topology = await call(sqlite_place, "Topology")
    [broker] = topology.brokers
    assert (broker.host, broker.port) == ("127.0.0.1", sqlite_place.port)
    assert (topology.clusterSize, topology.partitionsCount, topology.replicationFactor) == (1, 1, 1)
    assert (topology.gatewayVersion, broker.version) == ("8.6.0", "8.6.0")
    assert [partition.role for partition in broker.partitions] == [pb.Partition.LEADER]


# Streams ------------------------------------------------------------------------------------------------


def stream(place: Place, **fields: Any) -> Any:
    """A stream of jobs that has begun."""
    request = pb.StreamActivatedJobsRequest(**{"type": TYPE, "worker": "z1", "timeout": 60_000, **fields})
    return place.zeebe.StreamActivatedJobs(request, metadata=place.metadata)


@pytest.mark.every_engine
async def test_a_stream_sends_jobs_as_they_come(place: Place) -> None:
    jobs = stream(place)
    keys = [int(await place.create(variables={"n": str(n)})) for n in range(25)]
    received = [await jobs.read() for _ in keys]
    assert [job.key for job in received] == keys
    assert [json.loads(job.variables) for job in received] == [{"n": str(n)} for n in range(25)]
    jobs.cancel()


async def test_a_stream_that_ends_leaves_nothing_behind(place: Place) -> None:
    jobs = stream(place)
    await until(lambda: place.service.waiting(TYPE))
    jobs.cancel()
    await until(lambda: not place.service.waiting(TYPE))
    key = await place.create()
    assert [job.key for job in await poll(place)] == [int(key)]


async def test_what_a_slow_stream_did_not_take_goes_back_when_it_ends(sqlite_place: Place) -> None:
    """The connection holds some; the others are not even leased, or handed back."""
    place = sqlite_place
    for _ in range(30):
        await place.create(variables={"a": "x" * 500_000})
    jobs = stream(place)
    await jobs.read()
    jobs.cancel()

    async def most_are_free() -> bool:
        counts = {count.state: count.jobs for count in await place.service._engine.count()}
        return counts[State.PENDING] > 15

    await until(most_are_free)


async def test_a_stream_ends_when_its_key_is_revoked(sqlite_place: Place) -> None:
    place = sqlite_place
    key = await place.keys.create("soon gone", ["jobs"])
    place.metadata = (("x-api-key", key.text),)
    jobs = stream(place)
    await until(lambda: place.service.waiting(TYPE))
    await place.keys.revoke(key.key.id)
    assert await jobs.code() is StatusCode.UNAUTHENTICATED


async def test_a_stream_with_a_deadline_ends_well_before_it(sqlite_place: Place) -> None:
    request = pb.StreamActivatedJobsRequest(type=TYPE, worker="z1", timeout=60_000)
    jobs: Any = sqlite_place.zeebe.StreamActivatedJobs(request, metadata=sqlite_place.metadata, timeout=1.0)
    assert await jobs.code() is StatusCode.OK


async def test_a_stopping_server_ends_its_streams(open_place: OpenPlace) -> None:
    place = await open_place()
    jobs = stream(place)
    await until(lambda: place.service.waiting(TYPE))
    await asyncio.wait_for(place.door.stop(SECONDS), SECONDS / 2)
    assert await jobs.code() is StatusCode.OK
