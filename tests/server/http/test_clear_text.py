"""Keys in clear text: refused from other hosts, unless TLS ends at a trusted proxy or the settings allow it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from everwork.exceptions import PermissionDenied
from everwork.server.grpc.gateway import _require_private_key
from everwork.server.settings import Settings
from everwork.server.settings_warnings import clear_text_warning
from tests.server.http.serving import ROOT_KEY, serving

FAR, PROXY = "203.0.113.9", "10.0.0.7"
KEY = {"X-API-Key": ROOT_KEY}
HTTPS, HTTP = {"X-Forwarded-Proto": "https", "X-Forwarded-For": FAR}, {"X-Forwarded-Proto": "http"}


@asynccontextmanager
async def calling(folder: Path, peer: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A caller at an address, and a server that is configured as if it listened on all addresses.

    The test's own server listens on a loopback address, where no call comes from another host.
    """
    async with serving(f"sqlite:///{folder / 'jobs.db'}") as rest:
        context = rest.server.context
        exposed = {"host": "0.0.0.0", **settings}
        object.__setattr__(context, "settings", Settings(**exposed))
        transport = httpx.ASGITransport(rest.server.app, client=(peer, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example.org") as client:
            yield client


@pytest.mark.parametrize(
    ("peer", "headers", "settings", "status"),
    [
        (FAR, {}, {}, 403),
        (PROXY, {}, {}, 403),
        ("::ffff:10.0.0.7", {}, {}, 403),
        ("127.0.0.1", {}, {}, 200),
        ("::1", {}, {}, 200),
        ("::ffff:127.0.0.1", {}, {}, 200),
        (FAR, {}, {"insecure": "on"}, 200),
        (FAR, {}, {"host": "127.0.0.1"}, 200),
        (FAR, HTTPS, {}, 403),
        (PROXY, HTTPS, {"trusted_proxies": (PROXY,)}, 200),
        (PROXY, HTTP, {"trusted_proxies": (PROXY,)}, 403),
        (PROXY, {}, {"trusted_proxies": (PROXY,)}, 403),
        ("127.0.0.1", {"X-Forwarded-For": FAR}, {"trusted_proxies": ("127.0.0.1",)}, 403),
        (FAR, HTTPS, {"trusted_proxies": (PROXY,)}, 403),
    ],
)
async def test_a_key_in_clear_text_is_accepted_from_this_host_only(
    tmp_path: Path, peer: str, headers: Mapping[str, str], settings: Mapping[str, Any], status: int
) -> None:
    async with calling(tmp_path, peer, **settings) as client:
        answer = await client.get("/jobs", headers={**KEY, **headers})
        assert answer.status_code == status, answer.text
        if status == 403:
            assert "does not accept API keys over an unencrypted connection" in answer.json()["detail"]
        form = await client.get("/ui/login", headers=headers)
        login = await client.post("/ui/login", data={"key": ROOT_KEY}, headers=headers)
        assert (form.status_code, 'name="key"' in form.text, login.status_code) == (
            (200, True, 303) if status == 200 else (403, False, 403)
        )


async def test_whether_a_key_is_good_is_not_told_in_clear_text_and_no_key_is_still_none(tmp_path: Path) -> None:
    async with calling(tmp_path, FAR) as client:
        answers = [await client.get("/jobs", headers={"X-API-Key": key}) for key in (ROOT_KEY, "a-wrong-key-here")]
        assert answers[0].content == answers[1].content
        assert (await client.get("/jobs")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("peer", "headers", "is_accepted"),
    [
        ("ipv4:203.0.113.9:5123", {}, False),
        ("ipv6:%5B2001:db8::1%5D:5123", {}, False),
        ("ipv4:127.0.0.1:5123", {}, True),
        ("ipv6:%5B::1%5D:5123", {}, True),
        ("ipv6:%5B::ffff:127.0.0.1%5D:5123", {}, True),
        ("unix:/run/everwork.sock", {}, True),
        ("ipv4:10.0.0.7:5123", HTTPS, True),
        ("ipv4:10.0.0.7:5123", HTTP, False),
        ("ipv4:203.0.113.9:5123", HTTPS, False),
        ("ipv4:127.0.0.2:5123", {"X-Forwarded-For": FAR}, False),
    ],
)
def test_grpc_has_the_same_rule(peer: str, headers: Mapping[str, str], is_accepted: bool) -> None:
    metadata = [(name.lower(), value) for name, value in headers.items()]
    settings = Settings(host="0.0.0.0", trusted_proxies=(PROXY, "127.0.0.2"))
    try:
        _require_private_key(metadata, peer, settings)
    except PermissionDenied:
        assert not is_accepted
    else:
        assert is_accepted


def test_a_server_that_others_reach_without_tls_warns() -> None:
    exposed = clear_text_warning(Settings(host="0.0.0.0"))
    allowed = clear_text_warning(Settings(host="jobs.example.org", insecure="on"))
    assert exposed is not None
    assert "TLS is off and host is 0.0.0.0" in exposed
    assert "--insecure" in exposed
    assert allowed is not None
    assert "insecure is on: API keys and jobs can be read" in allowed
    for safe in (Settings(), Settings(host="::1"), Settings(host="::", tls_certificate=Path("c"), tls_key=Path("k"))):
        assert clear_text_warning(safe) is None
