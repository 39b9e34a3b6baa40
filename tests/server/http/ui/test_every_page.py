"""What holds for every page: how many are followed at once, how often a key may call, and whose cookie is whose."""

from __future__ import annotations

from contextlib import AsyncExitStack

import httpx
import orjson
import pytest

from everwork.core.limits import LIVE_PAGES_EACH_MAX
from everwork.exceptions import EngineUnavailable
from everwork.server.http.ui import live
from everwork.server.http.ui.live import TOO_MANY_PAGES
from tests.server.http.serving import DEADLINE_S, ROOT_KEY, Rest
from tests.server.http.ui.visiting import visiting


async def first_event(answer: httpx.Response) -> tuple[str, str]:
    """The name of the first event of a stream, and what it says."""
    lines = answer.aiter_lines()
    async for line in lines:
        if line.startswith("event: "):
            return line.removeprefix("event: "), orjson.loads((await anext(lines)).removeprefix("data: "))
    raise AssertionError("the stream ended without an event")


async def test_one_visitor_does_not_take_the_live_pages_of_others(local: Rest) -> None:
    async with visiting(local) as greedy, visiting(local) as other, AsyncExitStack() as streams:
        follow = "/ui/live?path=%2Fui"
        for _ in range(LIVE_PAGES_EACH_MAX):
            await streams.enter_async_context(greedy.client.stream("GET", follow))
        refused = await streams.enter_async_context(greedy.client.stream("GET", follow))
        assert await first_event(refused) == ("crowded", TOO_MANY_PAGES)
        followed = await streams.enter_async_context(other.client.stream("GET", follow))
        assert (await first_event(followed))[0] == "page"


async def test_visitors_who_are_not_logged_in_take_no_live_pages_of_others(
    local: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LIVE_PAGES_MAX", 3)
    monkeypatch.setattr(live, "REFRESH_SECONDS", 20)  # Once counted, always counted.
    follow = "/ui/live?path=%2Fui"
    async with visiting(local) as visitor, AsyncExitStack() as streams:
        strangers = await streams.enter_async_context(httpx.AsyncClient(base_url=local.url, timeout=DEADLINE_S))
        for number in range(3):
            cookie = {"Cookie": f"everwork_{local.url.rpartition(':')[2]}=forged-{number}"}
            await streams.enter_async_context(strangers.stream("GET", follow, headers=cookie))
        followed = await streams.enter_async_context(visitor.client.stream("GET", follow))
        assert await anext(followed.aiter_lines()) == "retry: 2000"


async def test_the_sessions_of_one_key_have_a_share_of_the_live_pages(
    local: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LIVE_PAGES_KEY_MAX", 2)
    follow = "/ui/live?path=%2Fui"
    async with visiting(local) as first, visiting(local) as second, AsyncExitStack() as streams:
        for one in (first, second):
            await streams.enter_async_context(one.client.stream("GET", follow))
        refused = await streams.enter_async_context(first.client.stream("GET", follow))
        assert await first_event(refused) == ("crowded", TOO_MANY_PAGES)


async def test_a_page_can_be_followed_while_the_store_is_unavailable(
    local: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> None:
        raise EngineUnavailable("the store does not respond")

    async with visiting(local) as visitor, AsyncExitStack() as streams:
        monkeypatch.setattr(local.service.sessions, "find", unavailable)
        monkeypatch.setattr(live, "LIVE_PAGES_EACH_MAX", 2)
        first, _, refused = [
            await streams.enter_async_context(visitor.client.stream("GET", "/ui/live?path=%2Fui")) for _ in range(3)
        ]
        assert (await first_event(refused))[0] == "crowded"
        assert (await first_event(first))[0] == "trouble"


async def test_the_rate_of_a_key_holds_for_its_pages(local: Rest) -> None:
    key = (await local.key("jobs:read", rate_per_second=0.01))["X-API-Key"]
    async with httpx.AsyncClient(base_url=local.url, timeout=DEADLINE_S) as client:
        await client.post("/ui/login", data={"key": key})
        answer = await client.get("/ui/jobs")
    assert answer.status_code == 429
    assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("host", "cookie"), [("a.example:81", "everwork_81"), ("a.example", "everwork_"), ("[", "everwork_")]
)
async def test_the_cookie_is_named_after_the_port_that_the_browser_knows(local: Rest, host: str, cookie: str) -> None:
    answer = await local.client.post("/ui/login", data={"key": ROOT_KEY}, headers={"Host": host})
    assert list(answer.cookies) == [cookie]


async def test_a_stranger_cannot_make_the_server_believe_in_a_proxy(local: Rest) -> None:
    told = {"X-Forwarded-Proto": "https"}
    answer = await local.client.post("/ui/login", data={"key": ROOT_KEY}, headers=told)
    assert "secure" not in answer.headers["set-cookie"].lower()
