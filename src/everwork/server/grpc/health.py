"""Health and reflection: the services that need no key, because they reveal nothing about jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from everwork.aio.loops import BackgroundLoop
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from everwork.server.grpc.gateway import Context, Handler, Methods, abort
from everwork.server.grpc.guests import Guests
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
_UNKNOWN: Final[bytes] = health_pb2.HealthCheckResponse(
    status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
).SerializeToString()


class Health:
    """`grpc.health.v1.Health`: SERVING while the server is ready, like `/readyz`."""

    def __init__(self, readiness: Readiness, guests: Guests) -> None:
        self._readiness = readiness
        self._guests = guests
        self._known = {"", HEALTH, *OWN_SERVICES}
        self._is_stopping = False
        self._is_serving = False
        self._changed = asyncio.Event()
        """Set when the status changes, and then replaced."""
        self._watching: BackgroundLoop | None = None

    def start(self) -> None:
        """Start checking the readiness for all watching clients."""
        self._watching = BackgroundLoop("everwork-health", self._look, WATCH_SECONDS)
        self._watching.start()

    async def stop(self) -> None:
        """Report NOT_SERVING from now on."""
        self._is_stopping = True
        self._report(is_serving=False)
        if self._watching is not None:
            await self._watching.abort()

    def methods(self) -> Methods:
        """The handlers of the calls."""
        return {
            f"/{HEALTH}/Check": grpc.stream_unary_rpc_method_handler(self._check),
            f"/{HEALTH}/Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, _requests: object, context: Context) -> bytes:
        """Answer a check; while too many other requests are unfinished, answer for the server as a whole."""
        service = ""
        if self._guests.can_send():
            service = await self._service(context)
        if service not in self._known:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"unknown service {service[:100]!r}")
        return _response(is_serving=await self._check_serving())

    async def _watch(self, _requests: object, context: Context) -> None:
        async with self._guests.staying(context):
            service = await self._service(context)
            if service not in self._known:
                await context.write(_UNKNOWN)
            elif not self._is_stopping:
                self._report(is_serving=await self._check_serving())
            reported = None
            while True:
                changed = self._changed
                if service in self._known and reported is not self._is_serving:
                    reported = self._is_serving
                    await context.write(_response(is_serving=reported))
                if self._is_stopping:
                    return
                await changed.wait()

    async def _service(self, context: Context) -> str:
        """The service that a call asks about."""
        request = await self._guests.request(health_pb2.HealthCheckRequest, context)
        return "" if request is None else str(request.service)

    async def _look(self) -> bool:
        self._report(is_serving=await self._check_serving() if self._guests.count else self._is_serving)
        return False

    def _report(self, *, is_serving: bool) -> None:
        if is_serving is not self._is_serving or self._is_stopping:
            self._is_serving = is_serving and not self._is_stopping
            self._changed.set()
            self._changed = asyncio.Event()

    async def _check_serving(self) -> bool:
        return not self._is_stopping and await self._readiness.check() is None


def reflection_methods(guests: Guests) -> Methods:
    """The handlers of reflection, with a descriptor pool of our own files and the health and reflection files."""
    names = (*OWN_SERVICES, HEALTH, *REFLECTIONS)
    servicer = reflection.aio.ReflectionServicer(names, pool=_pool())  # type: ignore[attr-defined]  # Missing in its stubs.
    handler = _reflection(servicer, guests)
    return {f"/{name}/ServerReflectionInfo": handler for name in REFLECTIONS}


def _reflection(servicer: Any, guests: Guests) -> Handler:
    async def call(_requests: object, context: Context) -> None:
        async def requests() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            while (request := await guests.request(reflection_pb2.ServerReflectionRequest, context)) is not None:
                yield request

        async with guests.staying(context):
            async for response in servicer.ServerReflectionInfo(requests(), context):
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


def _response(*, is_serving: bool) -> bytes:
    response = health_pb2.HealthCheckResponse
    serialized: bytes = response(status=response.SERVING if is_serving else response.NOT_SERVING).SerializeToString()
    return serialized
