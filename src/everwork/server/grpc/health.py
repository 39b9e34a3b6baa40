"""Health and reflection: the services that need no key, because they reveal nothing about jobs."""

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
"""The same messages are served under two names; newer clients use the first."""
WATCH_SECONDS: Final = 2.0
"""How often the readiness is checked for watching clients."""
OWN_SERVICES: Final = tuple(
    service.full_name
    for file in (jobs_pb2, gateway_pb2, work_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


class Health:
    """`grpc.health.v1.Health`: SERVING while the server is ready, like `/readyz`."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._stopping = asyncio.Event()
        self._known = {"", HEALTH, *OWN_SERVICES}

    def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._stopping.set()

    def methods(self) -> Methods:
        """The handlers of the calls."""
        return {
            f"/{HEALTH}/Check": grpc.unary_unary_rpc_method_handler(self._check),
            f"/{HEALTH}/Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, raw: bytes, context: Context) -> bytes:
        service = (await _parsed_or_abort(health_pb2.HealthCheckRequest, raw, context)).service
        if service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {service[:100]!r}")
        return await self._response(service)

    async def _watch(self, raw: bytes, context: Context) -> None:
        service = (await _parsed_or_abort(health_pb2.HealthCheckRequest, raw, context)).service
        previous = b""
        while True:
            is_last = self._stopping.is_set()
            if (response := await self._response(service)) != previous:
                await context.write(response)
            if is_last:
                return
            previous = response
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WATCH_SECONDS)

    async def _response(self, service: str) -> bytes:
        response_type = health_pb2.HealthCheckResponse
        status = response_type.SERVICE_UNKNOWN
        if service in self._known:
            is_serving = not self._stopping.is_set() and await self._readiness.check() is None
            status = response_type.SERVING if is_serving else response_type.NOT_SERVING
        response: bytes = response_type(status=status).SerializeToString()
        return response


def reflection_methods() -> Methods:
    """The handlers of reflection, with a descriptor pool of our own files and the health and reflection files."""
    names = (*OWN_SERVICES, HEALTH, *REFLECTIONS)
    servicer = reflection.aio.ReflectionServicer(names, pool=_pool())  # type: ignore[attr-defined]  # Missing in its stubs.
    handler = _reflection(servicer)
    return {f"/{name}/ServerReflectionInfo": handler for name in REFLECTIONS}


def _reflection(servicer: Any) -> Handler:
    async def call(requests: AsyncIterator[bytes], context: Context) -> None:
        async def parsed_requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            async for raw in requests:
                yield await _parsed_or_abort(reflection_pb2.ServerReflectionRequest, raw, context)

        async for response in servicer.ServerReflectionInfo(parsed_requests(), context):
            await context.write(response.SerializeToString())

    return grpc.stream_stream_rpc_method_handler(call)


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    alpha = _serialized([reflection_pb2.DESCRIPTOR])[0]
    for file in (
        *_serialized([jobs_pb2.DESCRIPTOR, gateway_pb2.DESCRIPTOR, work_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR]),
        alpha,
    ):
        pool.AddSerializedFile(file)
    # The newer version differs only in its names.
    newer = text_format.MessageToString(FileDescriptorProto.FromString(alpha)).replace("v1alpha", "v1")
    pool.AddSerializedFile(text_format.Parse(newer, FileDescriptorProto()).SerializeToString())
    return pool


def _serialized(files: Iterable[Any]) -> list[bytes]:
    copies = []
    for file in files:
        copy = FileDescriptorProto()
        file.CopyToProto(copy)
        copies.append(copy.SerializeToString())
    return copies


async def _parsed_or_abort(request_type: Any, raw: bytes, context: Context) -> Any:
    try:
        return parsed(request_type, raw)
    except InvalidInput as error:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
