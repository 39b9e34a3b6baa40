"""Every call of every service, with every kind of key: the table is made from the services' descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from everwork.client.errors import WRITE_FAILED
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from everwork.service.access.failures import AuthenticationFailures
from everwork.service.access.principal import Permission
from tests.app.waiting import until
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import KEY, SECONDS, TYPE, RunningServer, refused
from tests.server.matrix import TENANT, Expected, Holder, Row, Scope, expected, texts_of_keys

READ, WRITE = Permission.JOBS_READ, Permission.JOBS


class Call(NamedTuple):
    """A row of the table, with what is asked, and the status with which it is answered to those who may ask.

    A job's key is filled in where one is named. The job is one that a worker holds.
    """

    row: Row
    fields: Mapping[str, Any]
    answer: grpc.StatusCode = grpc.StatusCode.OK


NAMED: Final = Row(WRITE, Scope.JOB)
JOBS: Final = "atom.jobs.v1.JobsService"
ZEEBE: Final = "gateway_protocol.Gateway"
WORK: Final = "everwork.v1.WorkService"
DESK: Final = "everwork.v1.DeskService"
WRONG_STATE: Final = grpc.StatusCode.FAILED_PRECONDITION
CALLS: Final[Mapping[str, Call]] = {
    f"/{JOBS}/CreateJob": Call(Row(WRITE, Scope.OWN), {"job_type": "made"}),
    f"/{JOBS}/ActivateJobs": Call(Row(WRITE, Scope.OWN), {"type": "another", "worker": "w"}),
    f"/{JOBS}/CompleteJob": Call(NAMED, {}),
    f"/{JOBS}/FailJob": Call(NAMED, {}),
    f"/{JOBS}/ThrowError": Call(NAMED, {"error_code": "E"}),
    f"/{JOBS}/UpdateJobRetries": Call(NAMED, {"retries": 2}),
    f"/{JOBS}/UpdateJobTimeout": Call(NAMED, {"timeout": 60_000}),
    f"/{JOBS}/CancelJob": Call(NAMED, {}),
    f"/{JOBS}/GetJob": Call(Row(READ, Scope.JOB), {}),
    f"/{JOBS}/ListJobs": Call(Row(READ, Scope.OWN), {}),
    f"/{JOBS}/GetJobStats": Call(Row(READ, Scope.OWN), {}),
    f"/{ZEEBE}/Topology": Call(Row(READ, Scope.NOTHING), {}),
    f"/{ZEEBE}/ActivateJobs": Call(
        Row(WRITE, Scope.OWN), {"type": "another", "worker": "w", "timeout": 1_000, "maxJobsToActivate": 1}
    ),
    f"/{ZEEBE}/StreamActivatedJobs": Call(Row(WRITE, Scope.OWN), {"type": "another", "worker": "w", "timeout": 60_000}),
    f"/{ZEEBE}/CompleteJob": Call(NAMED, {}),
    f"/{ZEEBE}/FailJob": Call(NAMED, {}),
    f"/{ZEEBE}/ThrowError": Call(NAMED, {}),
    f"/{ZEEBE}/UpdateJobRetries": Call(NAMED, {"retries": 2}),
    f"/{ZEEBE}/UpdateJobTimeout": Call(NAMED, {"timeout": 60_000}),
    f"/{WORK}/CreateJobs": Call(Row(WRITE, Scope.OWN), {"jobs": [work_pb2.NewJob(type="made")]}),
    f"/{WORK}/Work": Call(Row(WRITE, Scope.OWN), {"hello": work_pb2.Hello(worker="w")}),
    f"/{DESK}/Activate": Call(Row(WRITE, Scope.OWN), {"type": "another", "worker": "w"}),
    f"/{DESK}/Settle": Call(NAMED, {}),
    f"/{DESK}/SettleLate": Call(NAMED, {}),
    f"/{DESK}/Extend": Call(NAMED, {"lease_ms": 60_000}),
    f"/{DESK}/Cancel": Call(NAMED, {}),
    f"/{DESK}/Requeue": Call(NAMED, {}, WRONG_STATE),
    f"/{DESK}/RequeueMatching": Call(Row(WRITE, Scope.OWN), {"filter": {"type": "another"}}),
    f"/{DESK}/SetRetries": Call(NAMED, {"retries": 2}),
    f"/{DESK}/Reschedule": Call(NAMED, {}, WRONG_STATE),
    f"/{DESK}/SetPriority": Call(NAMED, {}, WRONG_STATE),
    f"/{DESK}/Delete": Call(NAMED, {}, WRONG_STATE),
    f"/{DESK}/Get": Call(Row(READ, Scope.JOB), {}),
    f"/{DESK}/History": Call(Row(READ, Scope.JOB), {}),
    f"/{DESK}/Explain": Call(Row(READ, Scope.JOB), {}),
    f"/{DESK}/List": Call(Row(READ, Scope.OWN), {}),
    f"/{DESK}/Stats": Call(Row(READ, Scope.OWN), {}),
    f"/{DESK}/Result": Call(Row(READ, Scope.JOB), {}, grpc.StatusCode.DEADLINE_EXCEEDED),
    f"/{DESK}/Spooled": Call(Row(READ, Scope.OWN), {"spool_id": "0123-1"}, grpc.StatusCode.NOT_FOUND),
}
MISSING: Final = dict.fromkeys([f"/{DESK}/Settle", f"/{DESK}/SettleLate", f"/{DESK}/History"], grpc.StatusCode.OK)
"""The calls that respond with one result per job, or with an empty list."""


def methods() -> dict[str, MethodDescriptor]:
    """Every call that the files describe, by its full name."""
    files = (jobs_pb2, gateway_pb2, work_pb2)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}


def test_every_call_has_a_row() -> None:
    assert set(CALLS) == set(methods())


async def test_a_call_is_answered_for_those_keys_only_that_allow_it(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=0)
    server.keys.failures = AuthenticationFailures(burst=100_000)
    texts = await texts_of_keys(server.keys)
    cells = [(path, holder) for path in CALLS for holder in Holder]
    foreign = texts[Holder.OTHER_TENANT]
    ended = {(path, holder): await how_it_ends(server, path, texts[holder], foreign) for path, holder in cells}
    assert ended == {(path, holder): expected(CALLS[path].row, holder) for path, holder in cells}


async def how_it_ends(server: RunningServer, path: str, key: str | None, foreign: str | None) -> Expected:
    """Call with a key, about a job of the tenant that a worker holds."""
    job = await server.an_activated_job(tenant_id=TENANT)
    method = methods()[path]
    named = naming(path, int(job.job_key)) if CALLS[path].row.scope is Scope.JOB else {}
    raw = GetMessageClass(method.input_type)(**CALLS[path].fields, **named).SerializeToString()
    metadata = () if key is None else (("x-api-key", key),)
    code = await status_of(server, method, path, raw, metadata)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Expected.UNAUTHENTICATED
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return Expected.DENIED
    if key == foreign and CALLS[path].row.scope is Scope.JOB:
        # test_equal_answers.py checks that the response is that for a missing job.
        assert code is MISSING.get(path, grpc.StatusCode.NOT_FOUND)
        return Expected.MISSING
    assert code is CALLS[path].answer, f"{path} ended with {code}"
    return Expected.ANSWERED


def naming(path: str, key: int) -> dict[str, Any]:
    """How a request names a job."""
    if path.startswith(f"/{DESK}/Settle"):
        return {"outcomes": [work_pb2.Outcome(key=key, attempt=1, complete=work_pb2.Complete())]}
    if path.startswith(f"/{DESK}/"):
        return {"key": key}
    return {"jobKey": key} if path.startswith(f"/{ZEEBE}/") else {"job_key": str(key)}


async def status_of(
    server: RunningServer, method: MethodDescriptor, path: str, raw: bytes, metadata: Any
) -> grpc.StatusCode:
    if not method.server_streaming:
        call: Any = server.channel.unary_unary(path, None, None)(raw, metadata=metadata, timeout=SECONDS)
        return grpc.StatusCode(await call.code())
    if method.client_streaming:
        for _ in range(20):
            talk: Any = server.channel.stream_stream(path, None, None)(iter([raw]), metadata=metadata, timeout=SECONDS)
            with suppress(grpc.aio.AioRpcError):
                [welcome] = [message async for message in talk]
                assert work_pb2.ToWorker.FromString(welcome).welcome.server
            if await talk.details() != WRITE_FAILED:
                return grpc.StatusCode(await talk.code())
        raise AssertionError("gRPC never reported the server's status")
    stream: Any = server.channel.unary_stream(path, None, None)(raw, metadata=metadata, timeout=SECONDS)
    if method.name == "StreamActivatedJobs":
        # It would last: that it was let in is seen from its waiting.
        await until(lambda: stream.done() or server.service.waiting("another"))
        if not stream.done():
            stream.cancel()
            await until(lambda: not server.service.waiting("another"))
            return grpc.StatusCode.OK
    return grpc.StatusCode(await stream.code())


@pytest.mark.parametrize(
    "metadata",
    [
        (("x-api-key", KEY), ("x-api-key", KEY)),
        (("x-api-key", KEY), ("authorization", f"Bearer {KEY}")),
        (("x-api-key", ""),),
        (("x-api-key", KEY + " "),) * 2,
        (("x-api-key", "k" * 600),),
        (("x-api-key-bin", KEY.encode()),),
        (("x-api-key-bin", b"\xff\x00"),),
        (("authorization", "Basic dTpw"),),
        (("authorization", "Bearer"),),
        (("authorization", f"Bearer {KEY[:-1]}"),),
        (("authorization", "Bearer " + KEY[::-1]),),
    ],
)
async def test_no_key_or_more_than_one_is_unauthenticated(sqlite_server: RunningServer, metadata: Any) -> None:
    sqlite_server.metadata = metadata
    code, details = await refused(sqlite_server.call("GetJob", job_key="1"))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "API key" in details
    assert KEY not in details


async def test_a_key_may_come_as_a_bearer_token(sqlite_server: RunningServer) -> None:
    sqlite_server.metadata = (("authorization", f"Bearer {KEY}"),)
    assert (await sqlite_server.call("ListJobs")).success


async def test_jobs_of_other_tenants_are_neither_listed_nor_counted_nor_handed_out(
    sqlite_server: RunningServer,
) -> None:
    server = sqlite_server
    mine = await server.create(tenant_id="acme")
    await server.create(tenant_id="umbrella")
    bound = await server.keys.create("acme's", ["jobs"], tenants=["acme"])
    server.metadata = (("x-api-key", bound.text),)
    listed = await server.call("ListJobs")
    stats = (await server.call("GetJobStats")).stats
    assert ([job.job_key for job in listed.jobs], listed.total, stats.total_jobs) == ([mine], 1, 1)
    assert [job.job_key for job in await server.activate()] == [mine]
    code, _ = await refused(server.activate(tenant_ids="acme, umbrella"))
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_tenant_bound_key_creates_for_its_own_tenant(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    bound = await server.keys.create("acme's", ["jobs"], tenants=["acme"])
    server.metadata = (("x-api-key", bound.text),)
    key = await server.create()
    assert (await server.job(key)).tenant == "acme"
    code, _ = await refused(server.create(tenant_id="umbrella"))
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_key_that_is_revoked_during_a_poll_gets_no_job(open_server: OpenServer) -> None:
    server = await open_server(long_poll_seconds=30)
    key = await server.keys.create("soon gone", ["jobs"])
    stub, request = server.jobs, jobs_pb2.ActivateJobsRequest(type=TYPE, worker="w1")
    call: Any = stub.ActivateJobs(request, metadata=(("x-api-key", key.text),), timeout=SECONDS)
    await until(lambda: server.service.waiting(TYPE))
    await server.keys.revoke(key.key.id)
    job = await server.create()
    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
    assert [again.job_key for again in await server.activate()] == [job]


async def test_a_key_that_calls_too_often_is_told_when_to_come_back(open_server: OpenServer) -> None:
    server = await open_server(rate_limit=1)
    slow = await server.keys.create("slow", ["jobs"], rate_per_second=0.01)
    server.metadata = (("x-api-key", slow.text),)
    await server.call("ListJobs")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.call("ListJobs")
    metadata: Any = caught.value.trailing_metadata()
    trailing = {name: value for name, value in metadata}  # noqa: C416 - see everwork/client/errors.py
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert 0 < int(trailing["retry-after-ms"]) <= 100_000
    assert trailing["grpc-retry-pushback-ms"] == trailing["retry-after-ms"]
