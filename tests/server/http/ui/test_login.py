"""Logging in and out, and how a session ends."""

from __future__ import annotations

import re

import httpx
import pytest

from everwork.core.limits import LOGIN_LINK_MS, SESSION_MS
from everwork.engines.contract import Engine
from everwork.exceptions import Unauthenticated
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import ANYBODY
from everwork.service.access.sessions import Sessions
from tests.server.http.serving import DEADLINE_S, ROOT_KEY, Rest
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import VirtualClock


def a_stranger(rest: Rest) -> httpx.AsyncClient:
    """Somebody whom the dashboard has never seen."""
    return httpx.AsyncClient(base_url=rest.url, timeout=DEADLINE_S)


async def test_whoever_is_not_logged_in_is_led_to_the_login_and_then_to_where_they_wanted(local: Rest) -> None:
    async with a_stranger(local) as stranger:
        asked = await stranger.get("/ui/jobs?state=failed&type=a%26b")
        assert (asked.status_code, asked.headers["location"]) == (
            303,
            "/ui/login?next=%2Fui%2Fjobs%3Fstate%3Dfailed%26type%3Da%2526b",
        )
        form = await stranger.get(asked.headers["location"])
        [following] = re.findall(r'name="next" value="([^"]+)"', form.text)
        done = await stranger.post("/ui/login", data={"key": ROOT_KEY, "next": following.replace("&amp;", "&")})
        assert done.headers["location"] == "/ui/jobs?state=failed&type=a%26b"
        assert (await stranger.get(done.headers["location"])).status_code == 200


async def test_the_cookie_is_for_the_dashboard_of_this_server_alone(local: Rest) -> None:
    async with a_stranger(local) as stranger:
        done = await stranger.post("/ui/login", data={"key": ROOT_KEY})
        [cookie] = done.headers.get_list("set-cookie")
        assert {"HttpOnly", "SameSite=lax", "Path=/ui"} <= {part.strip() for part in cookie.split(";")}
        assert ROOT_KEY not in cookie
        assert "Secure" not in cookie
        token = cookie.partition("=")[2].partition(";")[0]
    stored = "".join(entry.body + entry.name for entry in await local.engine.registered("session"))
    assert stored
    assert token not in stored


async def test_a_refused_login_says_the_same_of_every_wrong_key_and_repeats_none(
    local: Rest, caplog: pytest.LogCaptureFixture
) -> None:
    told = set()
    async with a_stranger(local) as stranger:
        for key in (f"{ROOT_KEY}x", "ew_0123456789ab_wrong", "<script>alert(1)</script>", "x" * 5_000, "\u202e"):
            answer = await stranger.post("/ui/login", data={"key": key, "next": "/ui/jobs"})
            assert (answer.status_code, dict(answer.cookies)) == (401, {})
            assert key not in answer.text
            assert key not in caplog.text
            told.add(re.sub(r'data-now="\d+"', "", answer.text))
    [page] = told
    assert 'name="next" value="/ui/jobs"' in page
    assert "login failed" in caplog.text


async def test_a_link_lets_in_once_and_whoever_is_in_already_goes_on(local: Rest) -> None:
    token = await Sessions(local.engine).new_link()
    async with a_stranger(local) as first, a_stranger(local) as second:
        page = await first.get("/ui/login", params={"token": token})
        assert f'name="token" value="{token}"' in page.text
        assert (await first.post("/ui/login", data={"token": token})).headers["location"] == "/ui"
        assert re.search(r'class="who" title="[^"]+login link[^"]+">Signed in by link<', (await first.get("/ui")).text)
        late = await second.post("/ui/login", data={"token": token})
        assert (late.status_code, dict(late.cookies)) == (401, {})
        assert "everwork login" in late.text
        assert (await first.post("/ui/login", data={"token": token})).status_code == 303
    assert token not in "".join(entry.name for entry in await local.engine.registered(None))


async def test_a_session_and_a_link_run_out_and_a_link_is_used_up(engine: Engine, clock: VirtualClock) -> None:
    sessions = Sessions(engine)
    link, session = await sessions.new_link(), await sessions.begin(ANYBODY, KeyRing(engine), "127.0.0.1")
    assert await sessions.find(session.token) == session
    assert await sessions.find(session.token[:-1]) is None
    clock.advance(ms=max(LOGIN_LINK_MS, SESSION_MS))
    assert await sessions.find(session.token) is None
    with pytest.raises(Unauthenticated):
        await sessions.follow(link, "127.0.0.1")
    again = await sessions.new_link()
    await sessions.follow(again, "127.0.0.1")
    with pytest.raises(Unauthenticated):
        await sessions.follow(again, "127.0.0.1")


async def test_a_session_ends_with_its_key_and_a_form_that_comes_too_late_does_nothing(local: Rest) -> None:
    job = await local.job()
    async with visiting(local, "jobs") as somebody:
        page = await somebody.page(f"/ui/jobs/{job['key']}")
        assert "Cancel" in page
        [key] = await local.keys.list()
        await local.keys.revoke(key.id)
        assert (await somebody.get("/ui/jobs")).headers["location"] == "/ui/login?next=%2Fui%2Fjobs"
        late = await somebody.post(f"/ui/jobs/{job['key']}/cancel")
        assert late.status_code == 401
        assert "nothing was changed" in late.text
        assert "/ui/login" in late.text
    assert (await local.ok("GET", f"/api/v1/jobs/{job['key']}"))["state"] == "pending"


async def test_logging_out_ends_the_session_also_for_a_copy_of_its_cookie(visitor: Visitor) -> None:
    kept = dict(visitor.client.cookies)
    said = await visitor.done("/ui/logout")
    assert (said["text"], said["to"]) == ("You are logged out.", "/ui/login")
    async with httpx.AsyncClient(base_url=visitor.rest.url, cookies=kept) as thief:
        assert (await thief.get("/ui")).headers["location"] == "/ui/login?next=%2Fui"
    noted = [one["action"] for one in (await visitor.rest.ok("GET", "/api/v1/audit"))["entries"]]
    assert noted[:2] == ["ui.logout", "ui.login"]


ELSEWHERE = [
    "https://evil.example/ui",
    "//evil.example",
    "/\\evil.example",
    "/uievil",
    "/ui/../docs\r\nX: y",
    "javascript:1",
    "/docs",
]


async def test_no_form_leads_to_another_site(local: Rest) -> None:
    async with visiting(local) as visitor:
        for place in ELSEWHERE:
            login = await visitor.client.post("/ui/login", data={"key": ROOT_KEY, "next": place})
            assert login.headers["location"] == "/ui", place
            assert (await visitor.done("/ui/jobs/find", place, key="x"))["to"] == "/ui", place
            assert 'name="next" value="/ui"' in await visitor.page("/ui/login", next=place)


async def test_a_session_of_a_key_shows_the_name_of_the_key(visitor: Visitor) -> None:
    page = await visitor.page("/ui")
    assert re.search(r'class="who" title="[^"]+">EVERWORK_API_KEY<', page)
    assert "Signed in by link" not in page
