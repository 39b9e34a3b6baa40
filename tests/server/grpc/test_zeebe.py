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
from everwork.server.grpc.zeebe import STREAM_WAIT_SECONDS, STREAMS_PER_SECOND
from tests.app.waiting import until
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import SECONDS, TYPE, RunningServer, refused


async def call(server: RunningServer, name: str, **fields: Any) -> Any:
    """The answer to one call of the gateway."""
    request = getattr(pb, f"{name}Request")(**fields)
    return await getattr(server.zeebe, name)(request, metadata=server.metadata, timeout=SECONDS)


async def poll(server: RunningServer, **fields: Any) -> list[Any]:
    """The jobs of one ActivateJobs."""
    usual: dict[str, Any] = {"type": TYPE, "worker": "z1", "timeout": 60_000, "maxJobsToActivate": 32}
    request = pb.ActivateJobsRequest(**{**usual, "requestTimeout": -1, **fields})
    messages = server.zeebe.ActivateJobs(request, metadata=server.metadata, timeout=SECONDS)
    return [job async for message in messages for job in message.jobs]


async def activated(server: RunningServer, **fields: Any) -> int:
    """The key of a new job that a Zeebe worker holds."""
    key = await server.create(**fields)
    [job] = await poll(server)
    assert job.key == int(key)
    return int(key)


async def test_a_job_comes_with_json_objects_and_the_fields_of_its_process(server: RunningServer) -> None:
    key = await server.create(
        variables_json='{"n": 1}',
        custom_headers={"h": "1"},
        retries=4,
        process_instance_key="2251799813685249",
        bpmn_process_id="order",
        process_definition_version="3",
        process_definition_key="not a number",
        element_id="task",
    )
    [job] = await poll(server)
    assert (job.key, job.type, job.worker, job.retries, job.tenantId) == (int(key), TYPE, "z1", 4, "<default>")
    assert (json.loads(job.variables), json.loads(job.customHeaders)) == ({"n": 1}, {"h": "1"})
    assert (job.processInstanceKey, job.bpmnProcessId, job.elementId) == (2251799813685249, "order", "task")
    assert (job.processDefinitionVersion, job.processDefinitionKey, job.elementInstanceKey) == (3, 0, 0)
    assert job.deadline == (await server.job(key)).lease_until_ms


async def test_a_job_without_anything_still_has_json_objects(sqlite_server: RunningServer) -> None:
    await sqlite_server.create()
    [job] = await poll(sqlite_server)
    assert (job.variables, job.customHeaders) == ("{}", "{}")


async def test_only_the_variables_asked_for_are_fetched(sqlite_server: RunningServer) -> None:
    await sqlite_server.create(variables={"a": "1", "b": "2"})
    [job] = await poll(sqlite_server, fetchVariable=["b"])
    assert json.loads(job.variables) == {"b": "2"}


async def test_a_completed_job_is_gone_to_zeebe(server: RunningServer) -> None:
    key = await activated(server)
    await call(server, "CompleteJob", jobKey=key, variables='{"ok": true}')
    code, details = await refused(call(server, "FailJob", jobKey=key, retries=1))
    assert ((await server.job(str(key))).state, (await server.job(str(key))).result) == (State.COMPLETED, '{"ok":true}')
    assert (code, details) == (StatusCode.NOT_FOUND, f"Job '{key}' not found")


@pytest.mark.parametrize("name", ["CompleteJob", "FailJob", "ThrowError", "UpdateJobTimeout"])
async def test_a_job_that_is_not_activated_is_in_the_wrong_state(server: RunningServer, name: str) -> None:
    key = int(await server.create())
    more = {"timeout": 1_000} if name == "UpdateJobTimeout" else {}
    code, details = await refused(call(server, name, jobKey=key, **more))
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
async def test_a_job_that_there_is_not_is_not_found(
    sqlite_server: RunningServer, name: str, more: dict[str, Any]
) -> None:
    code, _ = await refused(call(sqlite_server, name, jobKey=123_456, **more))
    assert code is StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "more"),
    [("CompleteJob", {}), ("UpdateJobRetries", {"retries": 1}), ("UpdateJobTimeout", {"timeout": 1})],
)
async def test_a_cancelled_job_is_not_found(sqlite_server: RunningServer, name: str, more: dict[str, Any]) -> None:
    key = await activated(sqlite_server)
    await sqlite_server.call("CancelJob", job_key=str(key))
    code, _ = await refused(call(sqlite_server, name, jobKey=key, **more))
    assert code is StatusCode.NOT_FOUND


@pytest.mark.every_engine
async def test_a_failure_sets_retries_backoff_and_variables(server: RunningServer) -> None:
    key = await activated(server, variables={"a": "1"})
    await call(server, "FailJob", jobKey=key, retries=7, errorMessage="no", retryBackOff=60_000, variables='{"b": 2}')
    job = await server.job(str(key))
    assert (job.state, job.retries, job.last_error) == (State.PENDING, 7, "no")
    assert json.loads(job.variables) == {"a": "1", "b": 2}
    assert job.run_at_ms > job.created_at_ms + 50_000


async def test_a_failure_without_retries_left_is_for_good(sqlite_server: RunningServer) -> None:
    key = await activated(sqlite_server)
    await call(sqlite_server, "FailJob", jobKey=key, retries=-1)
    assert (await sqlite_server.job(str(key))).state is State.FAILED


async def test_an_error_is_thrown_with_its_code_or_without_one(sqlite_server: RunningServer) -> None:
    first, second = await activated(sqlite_server), await activated(sqlite_server)
    await call(sqlite_server, "ThrowError", jobKey=first, errorCode="E1", errorMessage="no", variables='{"v": 1}')
    await call(sqlite_server, "ThrowError", jobKey=second, errorMessage="no code")
    job = await sqlite_server.job(str(first))
    assert (job.state, job.error_code, job.last_error, job.variables) == (State.FAILED, "E1", "no", '{"v":1}')
    assert (await sqlite_server.job(str(second))).state is State.FAILED


async def test_retries_and_timeouts_can_be_changed(server: RunningServer) -> None:
    key = await activated(server)
    await call(server, "UpdateJobRetries", jobKey=key, retries=42)
    before = (await server.job(str(key))).lease_until_ms or 0
    await call(server, "UpdateJobTimeout", jobKey=key, timeout=3_600_000)
    job = await server.job(str(key))
    assert job.retries == 42
    assert (job.lease_until_ms or 0) > before + 3_000_000


async def test_an_empty_poll_ends_within_the_time_that_was_asked_for(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=300)
    began = time.monotonic()
    assert await poll(server, requestTimeout=200) == []
    assert await poll(server, requestTimeout=-1) == []
    assert 0.2 <= time.monotonic() - began < SECONDS


async def test_a_poll_that_names_no_time_waits_for_work(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=300)
    waiting = asyncio.ensure_future(poll(server, requestTimeout=0))
    await until(lambda: server.service.waiting(TYPE))
    key = await server.create()
    assert [job.key for job in await waiting] == [int(key)]


async def test_a_worker_without_a_name_has_one(sqlite_server: RunningServer) -> None:
    await sqlite_server.create()
    [job] = await poll(sqlite_server, worker="")
    assert job.worker == "default"


async def test_the_topology_is_this_server(sqlite_server: RunningServer) -> None:
    topology = await call(sqlite_server, "Topology")
    [broker] = topology.brokers
    assert (broker.host, broker.port) == ("127.0.0.1", sqlite_server.port)
    assert (topology.clusterSize, topology.partitionsCount, topology.replicationFactor) == (1, 1, 1)
    assert (topology.gatewayVersion, broker.version) == ("8.6.0", "8.6.0")
    assert [partition.role for partition in broker.partitions] == [pb.Partition.LEADER]


# Streams ------------------------------------------------------------------------------------------------


def stream(server: RunningServer, **fields: Any) -> Any:
    """A stream of jobs that has begun."""
    request = pb.StreamActivatedJobsRequest(**{"type": TYPE, "worker": "z1", "timeout": 60_000, **fields})
    return server.zeebe.StreamActivatedJobs(request, metadata=server.metadata)


@pytest.mark.every_engine
async def test_a_stream_sends_jobs_as_they_come(server: RunningServer) -> None:
    jobs = stream(server)
    keys = [int(await server.create(variables={"n": str(n)})) for n in range(25)]
    received = [await jobs.read() for _ in keys]
    assert [job.key for job in received] == keys
    assert [json.loads(job.variables) for job in received] == [{"n": str(n)} for n in range(25)]
    jobs.cancel()


async def test_a_stream_that_ends_leaves_nothing_behind(server: RunningServer) -> None:
    jobs = stream(server)
    await until(lambda: server.service.waiting(TYPE))
    jobs.cancel()
    await until(lambda: not server.service.waiting(TYPE))
    key = await server.create()
    assert [job.key for job in await poll(server)] == [int(key)]


async def test_what_a_slow_stream_did_not_take_goes_back_when_it_ends(sqlite_server: RunningServer) -> None:
    """The connection holds some; the others are not even leased, or handed back."""
    server = sqlite_server
    for _ in range(30):
        await server.create(variables={"a": "x" * 500_000})
    jobs = stream(server)
    await jobs.read()
    jobs.cancel()

    async def most_are_free() -> bool:
        counts = {count.state: count.jobs for count in await server.service._engine.count()}
        return counts[State.PENDING] > 15

    await until(most_are_free)


async def test_a_stream_ends_when_its_key_is_revoked(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    key = await server.keys.create("soon gone", ["jobs"])
    server.metadata = (("x-api-key", key.text),)
    jobs = stream(server)
    await until(lambda: server.service.waiting(TYPE))
    await server.keys.revoke(key.key.id)
    assert await jobs.code() is StatusCode.UNAUTHENTICATED


async def test_many_idle_streams_poll_less_often(sqlite_server: RunningServer) -> None:
    zeebe = sqlite_server.grpc_server._zeebe
    assert 0.5 <= zeebe._stream_seconds <= STREAM_WAIT_SECONDS
    zeebe._streams = 30 * STREAMS_PER_SECOND
    assert 15 <= zeebe._stream_seconds <= 30


async def test_a_stream_with_a_deadline_ends_well_before_it(sqlite_server: RunningServer) -> None:
    request = pb.StreamActivatedJobsRequest(type=TYPE, worker="z1", timeout=60_000)
    jobs: Any = sqlite_server.zeebe.StreamActivatedJobs(request, metadata=sqlite_server.metadata, timeout=1.0)
    assert await jobs.code() is StatusCode.OK


async def test_a_stopping_server_ends_its_streams(open_server: OpenServer) -> None:
    server = await open_server()
    jobs = stream(server)
    await until(lambda: server.service.waiting(TYPE))
    await asyncio.wait_for(server.grpc_server.stop(SECONDS), SECONDS / 2)
    assert await jobs.code() is StatusCode.OK
