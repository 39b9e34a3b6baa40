"""Failed authentication on every API: logged without secrets, throttled, and never an obstacle to a valid key."""

from __future__ import annotations

import logging
import secrets
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from everwork.proto import jobs_pb2
from everwork.service.access.failures import AuthenticationFailures
from tests.server.whole import KEY, Whole

SECONDS = 60.0
BURST = 5


@pytest.fixture
def wary(sqlite_whole: Whole) -> Whole:
    """A server that throttles early, and whose clock stands still, so that failures are never forgotten."""
    sqlite_whole.server.keys.failures = AuthenticationFailures(burst=BURST, clock=lambda: 0.0)
    return sqlite_whole


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The log lines of an event."""
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if event in text]


async def rest(whole: Whole, key: str | None) -> int:
    """The status of a REST call with a key."""
    header = {} if key is None else {"X-API-Key": key}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}", timeout=SECONDS) as client:
        return (await client.get("/jobs", headers=header)).status_code


async def login(whole: Whole, **fields: str) -> int:
    """The status of the login form; 303 means logged in."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}", timeout=SECONDS) as client:
        return (await client.post("/ui/login", data=fields)).status_code


async def listed(whole: Whole, key: str | None) -> grpc.StatusCode:
    """The status of a gRPC call with a key."""
    async with whole.channel() as channel:
        metadata = () if key is None else (("x-api-key", key),)
        ask: Any = channel.unary_unary("/atom.jobs.v1.JobsService/ListJobs", None, None)
        call = ask(jobs_pb2.ListJobsRequest().SerializeToString(), metadata=metadata, timeout=SECONDS)
        return grpc.StatusCode(await call.code())


async def test_rest_throttles_bad_keys_and_lets_good_ones_in(wary: Whole, caplog: pytest.LogCaptureFixture) -> None:
    found = [await rest(wary, f"ew_0123456789ab_{number}") for number in range(BURST + 3)]
    assert found[:BURST] == [401] * BURST
    assert found[-1] == 429
    assert [await rest(wary, KEY) for _ in range(3)] == [200] * 3
    new = await wary.server.keys.create("neighbor", ["jobs:read"])
    assert await rest(wary, new.text) == 200
    assert await rest(wary, None) == 429
    told = lines(caplog, "authentication failed")
    assert len(told) == 2
    assert ("127.0.0.1" in told[0], "rest" in told[0]) == (True, True)


async def test_grpc_throttles_bad_keys_and_lets_good_ones_in(wary: Whole, caplog: pytest.LogCaptureFixture) -> None:
    found = [await listed(wary, f"ew_0123456789ab_{number}") for number in range(BURST + 3)]
    assert found[:BURST] == [grpc.StatusCode.UNAUTHENTICATED] * BURST
    assert found[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await listed(wary, KEY) is grpc.StatusCode.OK
    told = lines(caplog, "authentication failed")
    assert (len(told), "grpc" in told[0], "127.0.0.1" in told[0]) == (2, True, True)


async def test_the_login_form_throttles_bad_keys_and_links_and_lets_good_ones_in(
    wary: Whole, caplog: pytest.LogCaptureFixture
) -> None:
    found = [await login(wary, key=f"wrong-{number}") for number in range(BURST)]
    found += [await login(wary, token=f"wrong-{number}") for number in range(3)]
    assert (found[:BURST], found[-1]) == ([401] * BURST, 429)
    assert await login(wary, key=KEY) == 303
    assert await login(wary, token=await wary.service.sessions.new_link()) == 303
    assert len(lines(caplog, "login failed")) == 2


async def test_no_secret_is_in_the_log_after_any_failure(
    sqlite_whole: Whole, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    whole, keys = sqlite_whole, sqlite_whole.server.keys
    revoked = await keys.create("revoked", ["*"])
    await keys.revoke(revoked.key.id)
    live = await keys.create("live", ["jobs:read"])
    guess, link = secrets.token_urlsafe(), await whole.service.sessions.new_link()
    for bad in (revoked.text, f"{live.text}x", live.text[:-1], f"{KEY}x", guess, f"ew_{guess}", "x" * 5_000):
        assert await rest(whole, bad) == 401
        assert await listed(whole, bad) is grpc.StatusCode.UNAUTHENTICATED
        assert await login(whole, key=bad) == 401
    assert [await login(whole, token=token) for token in (link, link, guess)] == [303, 401, 401]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}", timeout=SECONDS) as client:
        for headers in ({"Authorization": f"Basic {guess}"}, {"X-API-Key": KEY, "Authorization": f"Bearer {KEY}"}):
            assert (await client.get("/jobs", headers=headers)).status_code == 401
    assert lines(caplog, "authentication failed")
    written = caplog.text + "".join(capfd.readouterr())
    known = (KEY, guess, link, *(one.text.split("_", 2)[2][:20] for one in (revoked, live)))
    assert [one for one in known if one in written] == []
