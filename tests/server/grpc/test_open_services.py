"""Health and reflection, which ask for no key; TLS; and the port itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import StatusCode
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from everwork.exceptions import BadConfiguration
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import SECONDS, RunningServer, _channel, refused, running_server
from tests.stores import url_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = [
    "atom.jobs.v1.JobsService",
    "everwork.v1.DeskService",
    "everwork.v1.WorkService",
    "gateway_protocol.Gateway",
]
REFLECTIONS = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]


async def health(server: RunningServer, service: str) -> int:
    call: Any = server.channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
    raw = await call(health_pb2.HealthCheckRequest(service=service).SerializeToString(), timeout=SECONDS)
    return int(health_pb2.HealthCheckResponse.FromString(raw).status)


async def test_every_service_is_healthy(sqlite_server: RunningServer) -> None:
    assert [await health(sqlite_server, name) for name in ["", *SERVICES]] == [SERVING] * 5
    code, _ = await refused(health(sqlite_server, "no.such.Service"))
    assert code is StatusCode.NOT_FOUND


async def test_a_watcher_learns_that_the_server_stops(open_server: OpenServer) -> None:
    server = await open_server()
    request = health_pb2.HealthCheckRequest(service=SERVICES[0]).SerializeToString()
    watches: list[Any] = [
        server.channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(request) for _ in range(2)
    ]
    seen = [[await watch.read()] for watch in watches]
    await asyncio.wait_for(server.grpc_server.stop(SECONDS), SECONDS / 2)
    for watch, messages in zip(watches, seen, strict=True):
        messages.append(await watch.read())
        told = [health_pb2.HealthCheckResponse.FromString(message).status for message in messages]
        assert told == [SERVING, NOT_SERVING]
        assert await watch.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # Its stubs do not know it.


async def test_a_watcher_learns_that_the_store_cannot_be_used(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.server.grpc.health.WATCH_SECONDS", 0.05)
    server = await open_server()
    watch: Any = server.channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"", timeout=SECONDS)
    told = [health_pb2.HealthCheckResponse.FromString(await watch.read()).status]
    await server.service._engine.close()
    told.append(health_pb2.HealthCheckResponse.FromString(await watch.read()).status)
    assert told == [SERVING, NOT_SERVING]
    watch.cancel()


@pytest.mark.parametrize("reflection", REFLECTIONS)
async def test_reflection_tells_every_service_and_its_file(sqlite_server: RunningServer, reflection: str) -> None:
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    asked += [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in [*SERVICES, reflection]]
    listed, *files = await reflect(sqlite_server, reflection, [one.SerializeToString() for one in asked])
    names = [service.name for service in listed.list_services_response.service]
    assert names == sorted([*SERVICES, *REFLECTIONS, "grpc.health.v1.Health"])
    told = [FileDescriptorProto.FromString(file.file_descriptor_response.file_descriptor_proto[0]) for file in files]
    assert [f"{one.package}.{service.name}" for one in told for service in one.service] == [
        SERVICES[0],
        *["everwork.v1.WorkService", "everwork.v1.DeskService"] * 2,
        SERVICES[3],
        reflection,
    ]


async def test_reflection_refuses_nonsense(sqlite_server: RunningServer) -> None:
    hostile = [
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="\0.." * 100),
        reflection_pb2.ServerReflectionRequest(file_by_filename="../../etc/passwd"),
        reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="x"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_extension=reflection_pb2.ExtensionRequest(
                containing_type="atom.jobs.v1.Job", extension_number=-1
            )
        ),
        reflection_pb2.ServerReflectionRequest(),
    ]
    for request in hostile:
        [answer] = await reflect(sqlite_server, REFLECTIONS[1], [request.SerializeToString()])
        assert answer.HasField("error_response"), request
    code, _ = await refused(reflect(sqlite_server, REFLECTIONS[1], [b"\xff\xff"]))
    assert code is StatusCode.INVALID_ARGUMENT


async def reflect(server: RunningServer, service: str, requests: list[bytes]) -> list[Any]:
    open_call: Any = server.channel.stream_stream(f"/{service}/ServerReflectionInfo", None, None)
    answers = open_call(iter(requests), timeout=SECONDS)
    return [reflection_pb2.ServerReflectionResponse.FromString(raw) async for raw in answers]


# TLS ----------------------------------------------------------------------------------------------------


class Papers:
    """An authority, and files with what it has signed."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.server = self._written(folder / "server", "localhost", "127.0.0.1")
        self.client = self._written(folder / "client", "worker@example.org")
        self.ca_file = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca_file))

    def _written(self, folder: Path, *names: str) -> tuple[Path, Path]:
        folder.mkdir()
        leaf = self.authority.issue_cert(*names)
        leaf.private_key_pem.write_to_path(str(folder / "key.pem"))
        leaf.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
        return folder / "key.pem", folder / "cert.pem"

    def credentials(self, *, as_client: bool = False) -> grpc.ChannelCredentials:
        """What a client brings."""
        authority = self.ca_file.read_bytes()
        if not as_client:
            return grpc.ssl_channel_credentials(authority)
        key, certificate = self.client
        return grpc.ssl_channel_credentials(authority, key.read_bytes(), certificate.read_bytes())


async def test_a_server_with_a_certificate_speaks_tls_only(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    key, certificate = papers.server
    settings: dict[str, Any] = {"tls_key": key, "tls_certificate": certificate}
    async with running_server(url_of("sqlite", tmp_path), **settings, credentials=papers.credentials()) as server:
        assert (await server.call("ListJobs")).success
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as plain:
            call: Any = plain.unary_unary("/atom.jobs.v1.JobsService/ListJobs", None, None)
            code, _ = await refused(call(b"", metadata=server.metadata, timeout=SECONDS))
            assert code is StatusCode.UNAVAILABLE


@pytest.mark.parametrize("as_client", [True, False])
async def test_a_server_may_want_certificates_of_its_clients(tmp_path: Path, as_client: bool) -> None:
    papers = Papers(tmp_path)
    key, certificate = papers.server
    settings: dict[str, Any] = {"tls_key": key, "tls_certificate": certificate, "tls_client_ca": papers.ca_file}
    credentials = papers.credentials(as_client=as_client)
    async with running_server(url_of("sqlite", tmp_path), **settings, credentials=credentials) as server:
        if as_client:
            assert (await server.call("ListJobs")).success
        else:
            code, _ = await refused(server.call("ListJobs"))
            assert code is StatusCode.UNAVAILABLE


async def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    papers = Papers(tmp_path)
    key, certificate = papers.server
    settings: dict[str, Any] = {"tls_key": key, "tls_certificate": certificate}
    async with running_server(url_of("sqlite", tmp_path), **settings, credentials=papers.credentials()) as server:
        assert (await server.call("ListJobs")).success
        (tmp_path / "renewed").mkdir()
        renewed = Papers(tmp_path / "renewed")
        for old, new in zip(papers.server, renewed.server, strict=True):
            new.replace(old)
        async with _channel(server.port, renewed.credentials()) as channel:
            call: Any = channel.unary_unary("/atom.jobs.v1.JobsService/ListJobs", None, None)
            await call(b"", metadata=server.metadata, timeout=SECONDS, wait_for_ready=True)
        assert (await server.call("ListJobs")).success  # The old connection stays open.


async def test_a_port_that_is_taken_is_told_in_one_line(sqlite_server: RunningServer, tmp_path: Path) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    with pytest.raises(BadConfiguration, match=f"grpc_port: cannot listen on 127.0.0.1:{sqlite_server.port}"):
        async with running_server(url_of("sqlite", folder), grpc_port=sqlite_server.port):
            pass
