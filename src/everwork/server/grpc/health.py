"""Health and reflection: the services that ask for no key, because they tell nothing of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from everwork.exceptions import InvalidInput
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from everwork.server.grpc.gateway import Context, Handler, Methods, parsed
from everwork.server.readiness import Readiness

HEALTH: Final = "grpc.health.v1.Health"
REFLECTIONS: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names: newer clients ask for the first."""
WATCH_SECONDS: Final = 2.0
"""How often the server looks whether it is ready, for those who watch."""
OURS: Final = tuple(
    service.full_name
    for file in (jobs_pb2, gateway_pb2, work_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


class Health:
    """`grpc.health.v1.Health`: SERVING while the server is ready, as `/readyz` has it."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._stopping = asyncio.Event()
        self._known = {"", HEALTH, *OURS}

    def stop(self) -> None:
        """Say NOT_SERVING from now on."""
        self._stopping.set()

    def methods(self) -> Methods:
        """The handlers of the calls."""
        return {
            f"/{HEALTH}/Check": grpc.unary_unary_rpc_method_handler(self._check),
            f"/{HEALTH}/Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, raw: bytes, context: Context) -> bytes:
        service = (await _understood(health_pb2.HealthCheckRequest, raw, context)).service
        if service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service is called {service[:100]!r}")
        return await self._told(service)

    async def _watch(self, raw: bytes, context: Context) -> None:
        service = (await _understood(health_pb2.HealthCheckRequest, raw, context)).service
        before = b""
        while True:
            is_last = self._stopping.is_set()
            if (told := await self._told(service)) != before:
                await context.write(told)
            if is_last:
                return
            before = told
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WATCH_SECONDS)

    async def _told(self, service: str) -> bytes:
        response = health_pb2.HealthCheckResponse
        status = response.SERVICE_UNKNOWN
        if service in self._known:
            serves = not self._stopping.is_set() and await self._readiness.judge() is None
            status = response.SERVING if serves else response.NOT_SERVING
        told: bytes = response(status=status).SerializeToString()
        return told


def reflection_methods() -> Methods:
    """Reflection, from a pool that knows our files and those of the open services."""
    names = (*OURS, HEALTH, *REFLECTIONS)
    servicer = reflection.aio.ReflectionServicer(names, pool=_pool())  # type: ignore[attr-defined]  # Its stubs forget.
    handler = _reflection(servicer)
    return {f"/{name}/ServerReflectionInfo": handler for name in REFLECTIONS}


def _reflection(servicer: Any) -> Handler:
    async def call(requests: AsyncIterator[bytes], context: Context) -> None:
        async def understood() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            async for raw in requests:
                yield await _understood(reflection_pb2.ServerReflectionRequest, raw, context)

        async for answer in servicer.ServerReflectionInfo(understood(), context):
            await context.write(answer.SerializeToString())

    return grpc.stream_stream_rpc_method_handler(call)


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    alpha = _copied([reflection_pb2.DESCRIPTOR])[0]
    for file in (
        *_copied([jobs_pb2.DESCRIPTOR, gateway_pb2.DESCRIPTOR, work_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR]),
        alpha,
    ):
        pool.AddSerializedFile(file)
    # The newer one differs by its names only.
    newer = text_format.MessageToString(FileDescriptorProto.FromString(alpha)).replace("v1alpha", "v1")
    pool.AddSerializedFile(text_format.Parse(newer, FileDescriptorProto()).SerializeToString())
    return pool


def _copied(files: Iterable[Any]) -> list[bytes]:
    copies = []
    for file in files:
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        copies.append(copy.SerializeToString())
    return copies


async def _understood(request_type: Any, raw: bytes, context: Context) -> Any:
    try:
        return parsed(request_type, raw)
    except InvalidInput as error:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
