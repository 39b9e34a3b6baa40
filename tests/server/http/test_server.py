"""The server itself: its port, its stop, TLS, and the API that it describes."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from everwork.exceptions import BadConfiguration
from everwork.server import certificates
from everwork.server.http.app import DOCUMENT, OPERATIONS
from everwork.server.http.framework.peer import client_address
from everwork.server.http.framework.server import HttpServer
from everwork.server.settings import Settings
from tests.app.waiting import DEADLINE_S, until
from tests.server.http.serving import JOBS, ROOT_KEY, Rest, serving
from tests.stores import url_of


async def test_a_port_that_is_taken_is_a_mistake_in_one_line(local: Rest) -> None:
    taken = int(local.url.rpartition(":")[2])
    second = HttpServer(local.service, local.keys, Settings(http_port=taken))
    with pytest.raises(
        BadConfiguration, match=rf"^http_port: cannot listen on 127\.0\.0\.1:{taken}: Address already in use; "
    ):
        await second.start()


async def test_a_door_that_was_never_opened_can_be_closed(local: Rest) -> None:
    server = HttpServer(local.service, local.keys, Settings(http_port=0))
    await server.stop(1)
    await server.start()
    await server.stop(1)
    await server.stop(1)


async def test_a_stopped_door_takes_no_calls_and_leaves_no_tasks(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        assert (await rest("GET", "/healthz")).status_code == 200
        await rest.server.stop(1)
        with pytest.raises(httpx.ConnectError):
            await rest("GET", "/healthz")
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "everwork-http"]


async def test_answers_leave_at_once(local: Rest) -> None:
    await local("GET", "/healthz")
    server = local.server._server
    assert server is not None
    [connection] = server.server_state.connections
    found: socket.socket = connection.transport.get_extra_info("socket")
    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@dataclass(frozen=True)
class Tls:
    """An authority, and a server's certificate of it in files."""

    authority: trustme.CA
    certificate: Path
    key: Path

    @property
    def trusting(self) -> ssl.SSLContext:
        """What a caller needs who trusts the authority."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """Files for a server on this host."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    made = Tls(authority, tmp_path / "server.pem", tmp_path / "server.key")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(made.certificate, append=True)
    issued.private_key_pem.write_to_path(made.key)
    return made


async def test_tls_is_served_with_the_certificate_of_the_settings(tmp_path: Path, tls: Tls) -> None:
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, **files) as rest:
        assert (await rest.job())["state"] == "pending"
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(verify=ssl.create_default_context()) as stranger:
                await stranger.get(f"{rest.url}/healthz")
        with pytest.raises(httpx.RemoteProtocolError):
            async with httpx.AsyncClient(verify=False) as plain:
                await plain.get(f"{rest.url.replace('https', 'http')}/healthz")


async def test_callers_need_a_certificate_of_their_own_if_the_settings_say_so(tmp_path: Path, tls: Tls) -> None:
    tls.authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    files: dict[str, Any] = {
        "tls_certificate": tls.certificate,
        "tls_key": tls.key,
        "tls_client_ca": tmp_path / "ca.pem",
    }
    known = tls.trusting
    tls.authority.issue_cert("caller@example.com").configure_cert(known)
    async with serving(url_of("sqlite", tmp_path), tls=known, **files) as rest:
        assert (await rest.job())["state"] == "pending"
        with pytest.raises(httpx.TransportError):
            async with httpx.AsyncClient(verify=tls.trusting) as stranger:
                await stranger.get(f"{rest.url}/healthz")


def renew(tls: Tls) -> Tls:
    """Replace the files with a certificate of another authority."""
    renewed = replace(tls, authority=trustme.CA())
    issued = renewed.authority.issue_cert("127.0.0.1")
    renewed.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    renewed.key.write_bytes(issued.private_key_pem.bytes())
    return renewed


async def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_SECONDS", 0.0)
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, **files) as rest:
        assert (await rest("GET", "/healthz")).status_code == 200
        renewed = renew(tls)
        async with httpx.AsyncClient(verify=renewed.trusting) as new:
            assert (await new.get(f"{rest.url}/healthz")).status_code == 200
        assert (await rest("GET", "/healthz")).status_code == 200  # Its connection is still open.
        renewed.key.write_text("half a key")
        async with httpx.AsyncClient(verify=renewed.trusting) as new:
            assert (await new.get(f"{rest.url}/healthz")).status_code == 200


async def test_files_that_are_replaced_just_after_they_were_loaded_end_no_connection(
    tmp_path: Path, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_SECONDS", 0.0)
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, **files) as rest:
        renewed = renew(tls)
        monkeypatch.setattr(certificates.log, "info", lambda *_, **__: renewed.key.write_text("half a key"))
        async with httpx.AsyncClient(verify=renewed.trusting) as new:
            assert (await new.get(f"{rest.url}/healthz")).status_code == 200


async def test_browsers_are_told_to_stay_with_tls_except_on_loopback(tmp_path: Path, tls: Tls) -> None:
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    for host, expected in (("127.0.0.1", None), ("0.0.0.0", "max-age=31536000")):
        async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, host=host, **files) as rest:
            for path in ("/healthz", "/ui/login", "/nowhere"):
                assert (await rest("GET", path)).headers.get("strict-transport-security") == expected


async def test_a_handshake_that_does_not_end_makes_room_for_others(tmp_path: Path, tls: Tls) -> None:
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, max_connections=10, **files) as rest:
        port, found = int(rest.url.rpartition(":")[2]), rest.server.connections
        assert found is not None
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        await until(lambda: len(found) == 10)
        found.clock = lambda: asyncio.get_running_loop().time() + 2
        assert (await rest("GET", "/healthz")).status_code == 200
        assert await asyncio.wait_for(silent[0][0].read(), DEADLINE_S) == b""
        for _, writer in silent:
            writer.close()
        await until(lambda: len(found) == 1)


async def test_a_refusal_of_a_connection_is_readable_with_tls_too(tmp_path: Path, tls: Tls) -> None:
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, max_connections=10, **files) as rest:
        found = rest.server.connections
        assert found is not None
        found.connections_max = 0
        answer = await rest("GET", "/healthz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_refused_connection_that_ends_makes_no_room_for_others(tmp_path: Path, tls: Tls) -> None:
    files: dict[str, Any] = {"tls_certificate": tls.certificate, "tls_key": tls.key}
    async with serving(url_of("sqlite", tmp_path), tls=tls.trusting, max_connections=10, **files) as rest:
        found = rest.server.connections
        assert found is not None
        found.connections_max = 0
        _, silent = await asyncio.open_connection("127.0.0.1", int(rest.url.rpartition(":")[2]))
        assert (await rest("GET", "/healthz")).status_code == 503
        found.clock = lambda: asyncio.get_running_loop().time() + 2
        assert (await rest("GET", "/healthz")).status_code == 503
        silent.close()


async def test_a_certificate_that_cannot_be_used_is_a_mistake_in_one_line(local: Rest, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    settings = Settings(http_port=0, tls_certificate=tmp_path / "bad.pem", tls_key=tmp_path / "bad.pem")
    with pytest.raises(BadConfiguration, match=r"^tls_certificate, tls_key: "):
        await HttpServer(local.service, local.keys, settings).start()


async def test_the_page_for_people_runs_its_own_script_and_nothing_else(local: Rest) -> None:
    answer = await local("GET", "/docs")
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        assert f"{tag}-src 'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert not re.findall(r"https?://|innerHTML|insertAdjacent|document\.write|eval\(|\son\w+=", answer.text)


async def test_whoever_comes_by_is_led_to_the_dashboard(local: Rest) -> None:
    assert (await local("GET", "/")).headers["location"] == "/ui"


async def test_the_description_has_every_operation_with_its_key_and_its_problems(local: Rest) -> None:
    document = (await local("GET", "/openapi.json")).json()
    assert document == DOCUMENT
    for operation in OPERATIONS:
        described = document["paths"][operation.path][operation.method.lower()]
        assert described["operationId"] == operation.id
        assert ("security" in described) == bool(operation.permissions)
        assert not operation.permissions or {"401", "403", "429", "503"} <= described["responses"].keys()


async def test_every_example_of_the_description_works_as_it_stands(local: Rest) -> None:
    await local.ok("POST", JOBS, [{"type": "email-send"}, {"type": "email-send"}])
    for operation in OPERATIONS:
        if operation.body is None or not operation.body.example:
            continue
        path = operation.path.replace("{key}", "2").replace("{type}", "email-send")
        answer = await local(operation.method, path, dict(operation.body.example))
        is_done = answer.status_code in {*operation.responses, 409} or answer.json()["code"] == "nothing_matches"
        assert is_done, f"{operation.id}: {answer.text}"


async def test_the_server_is_not_ready_while_it_stops(local: Rest) -> None:
    local.server.context.stopping.set()
    assert (await local.refused(503, "GET", "/readyz"))["code"] == "stopping"


async def test_ipv6_is_served_as_well(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), host="::1") as rest:
        place = rest.url.replace("127.0.0.1", "[::1]")
        async with httpx.AsyncClient(verify=False) as client:
            answer = await client.get(f"{place}/jobs", headers={"X-API-Key": ROOT_KEY})
    assert answer.status_code == 200


async def test_all_addresses_are_those_of_ipv4_too_and_are_written_as_such(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), host="::", trusted_proxies=("127.0.0.1",)) as rest:
        await rest.ok("PUT", "/api/v1/types/a/pause")
        far = {"X-Forwarded-For": "::ffff:203.0.113.9"}
        await rest.refused(403, "PUT", "/api/v1/types/a/resume", headers=far)
        await rest.ok("PUT", "/api/v1/types/a/resume", headers=far | {"X-Forwarded-Proto": "https"})
        async with httpx.AsyncClient(verify=False) as client:
            place = rest.url.replace("127.0.0.1", "[::1]")
            await client.put(f"{place}/api/v1/types/a/pause", headers={"X-API-Key": ROOT_KEY})
        entries = (await rest.ok("GET", "/api/v1/audit"))["entries"]
    assert [entry["origin"] for entry in entries] == ["::1", "203.0.113.9", "127.0.0.1"]


@pytest.mark.parametrize(
    ("peer", "trusted", "origin"),
    [
        ("::ffff:10.0.0.7", ("10.0.0.0/8",), "203.0.113.9"),
        ("10.0.0.7", ("::ffff:10.0.0.7",), "203.0.113.9"),
        ("fe80::1%eth0", ("fe80::/10",), "203.0.113.9"),
        ("::ffff:10.0.0.7", ("10.0.0.8",), "10.0.0.7"),
        ("::ffff:zzz", ("10.0.0.0/8",), "::ffff:zzz"),
    ],
)
def test_an_address_is_known_however_it_is_written(peer: str, trusted: tuple[str, ...], origin: str) -> None:
    scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", b"203.0.113.9")]}
    assert client_address(scope, trusted) == origin
