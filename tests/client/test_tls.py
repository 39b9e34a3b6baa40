"""Lines over TLS: whom the client trusts, and what it shows of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme

from everwork.client import ActiveJob, Client, SyncClient
from everwork.exceptions import BadConfiguration, CallTimeout, EngineUnavailable
from tests.client.server import KEY, ServerProcess, tls_files


async def test_tls_is_spoken_and_checked(url: str, tmp_path: Path) -> None:
    ours, flags = tls_files(tmp_path)
    trustme.CA().cert_pem.write_to_path(other := tmp_path / "other.pem")
    server = ServerProcess(url, tmp_path, *flags).start()
    secure = server.grpc_url.replace("grpc://", "grpcs://")
    try:
        for address in (secure, server.grpc_url):
            async with Client(address, key=KEY, tls=ours) as client:
                assert await client.activate("a") == []
        for address, tls in ((secure, other), (secure, False), (server.grpc_url, False)):
            async with Client(address, key=KEY, tls=tls, timeout=0.5) as client:
                with pytest.raises((EngineUnavailable, CallTimeout)):
                    await client.get(1)
    finally:
        server.stop()


async def test_a_server_that_asks_for_a_certificate_is_shown_one(url: str, tmp_path: Path) -> None:
    ours, flags = tls_files(tmp_path)
    (tmp_path / "everwork.toml").write_text(f"tls_client_ca = '{ours}'\n")
    server = ServerProcess(url, tmp_path, *flags).start()
    secure = server.grpc_url.replace("grpc://", "grpcs://")
    shown: dict[str, Any] = {"tls_certificate": tmp_path / "cert.pem", "tls_key": str(tmp_path / "key.pem")}
    try:
        async with Client(secure, key=KEY, tls=ours, **shown) as client:
            assert await client.activate("a") == []
        assert await asyncio.to_thread(asked_blocking, secure, ours, shown) == []
        async with Client(secure, key=KEY, tls=ours, timeout=0.5) as client:
            with pytest.raises((EngineUnavailable, CallTimeout)):
                await client.get(1)
    finally:
        server.stop()


def asked_blocking(url: str, ours: Path, shown: dict[str, Any]) -> list[ActiveJob]:
    with SyncClient(url, key=KEY, tls=ours, **shown) as client:
        return client.activate("a")


def test_a_certificate_and_its_key_belong_together(tmp_path: Path) -> None:
    tls_files(tmp_path)
    trustme.CA().issue_cert("other").private_key_pem.write_to_path(tmp_path / "other.pem")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"tls_certificate": certificate}, "tls_key: is required with tls_certificate"),
        ({"tls_key": key}, "tls_certificate: is required with tls_key"),
        ({"tls_certificate": certificate, "tls_key": tmp_path / "other.pem"}, "tls_key: .* belongs to the PEM cert"),
        ({"tls_certificate": key, "tls_key": tmp_path / "none.pem"}, "tls_key: the file .*none.pem' cannot be read"),
        ({"tls_certificate": 7, "tls_key": key}, "tls_certificate: must be the path of a PEM file, not 7"),
    ]
    for options, problem in mistakes:
        with pytest.raises(BadConfiguration, match=problem):
            Client("grpcs://host", **options)
    with pytest.raises(BadConfiguration, match="tls_certificate: needs TLS"):
        Client("grpc://host", tls_certificate=certificate, tls_key=key)
    assert "PRIVATE KEY" not in f"{Client('grpcs://host', tls_certificate=certificate, tls_key=key).transport.__dict__}"
