"""For a key bound to tenants, every call treats a job of another tenant like one that does not exist."""

from __future__ import annotations

import re
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from everwork.proto import work_pb2
from tests.server.grpc.running import SECONDS, RunningServer
from tests.server.grpc.test_keys import CALLS, WORK, methods, naming
from tests.server.matrix import OTHER_TENANT, TENANT

MISSING: Final = 99_999_999
NAMES: Final = ("key", "jobKey", "job_key", "outcomes")


def names_a_job(method: MethodDescriptor) -> bool:
    """Whether a request contains the key of a job, or outcomes of jobs."""
    return not method.client_streaming and any(name in method.input_type.fields_by_name for name in NAMES)


async def told(server: RunningServer, path: str, key: int, metadata: Any) -> tuple[str, ...]:
    """What a caller can see of a response, without what depends on the job."""
    request = GetMessageClass(methods()[path].input_type)
    raw = request(**CALLS[path].fields, **naming(path, key)).SerializeToString()
    call: Any = server.channel.unary_unary(path, None, None)(raw, metadata=metadata, timeout=SECONDS)
    try:
        answer = GetMessageClass(methods()[path].output_type).FromString(await call)
        seen = ["OK", str(answer), str(await call.trailing_metadata())]
    except grpc.aio.AioRpcError as error:
        seen = [error.code().name, error.details() or "", str(error.trailing_metadata())]
    return tuple(re.sub(rf"\b{key}\b", "KEY", text) for text in seen)


async def test_every_call_answers_for_a_foreign_job_as_for_a_missing_one(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    waiting = int(await server.create(tenant_id=TENANT, job_type="waits"))
    running = int((await server.an_activated_job(tenant_id=TENANT)).job_key)
    bound = await server.keys.create("other", ["jobs"], tenants=[OTHER_TENANT])
    metadata = (("x-api-key", bound.text),)
    paths = [path for path, method in methods().items() if names_a_job(method)]
    for path in paths:
        missing, *foreign = [await told(server, path, key, metadata) for key in (MISSING, waiting, running)]
        assert foreign == [missing] * 2, path
    assert len(paths) >= 24
    states = [(await server.job(str(key))).state.label for key in (waiting, running)]
    assert states == ["pending", "processing"]


async def test_a_stream_answers_for_a_foreign_job_as_for_a_missing_one(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    for _ in range(6):  # A key that differs from all other numbers in the responses.
        await server.create(job_type="waits")
    running = int((await server.an_activated_job(tenant_id=TENANT)).job_key)
    bound = await server.keys.create("other", ["jobs"], tenants=[OTHER_TENANT])
    answers = [await streamed(server, key, (("x-api-key", bound.text),)) for key in (MISSING, running)]
    assert answers[0] == answers[1]
    assert "NOT_FOUND" in answers[0]


async def streamed(server: RunningServer, key: int, metadata: Any) -> str:
    """The responses to a worker that resumes, ends and extends the lease of a job."""
    path, lease = f"/{WORK}/Work", work_pb2.Lease(key=key, attempt=1)
    ended = work_pb2.Outcome(key=key, attempt=1, complete=work_pb2.Complete())
    sent = [
        work_pb2.FromWorker(hello=work_pb2.Hello(worker="w", resumed=[lease])),
        work_pb2.FromWorker(outcomes=[ended]),
    ]
    raw = [message.SerializeToString() for message in sent]
    talk: Any = server.channel.stream_stream(path, None, None)(iter(raw), metadata=metadata, timeout=SECONDS)
    seen = [work_pb2.ToWorker.FromString(message) async for message in talk]
    for message in seen:
        message.welcome.ClearField("server")
    return re.sub(rf"\b{key}\b", "KEY", "".join(str(message) for message in seen))
