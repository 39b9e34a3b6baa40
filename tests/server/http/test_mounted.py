"""The dashboard as a part of another application: under any path, for those whom that application lets in."""

from __future__ import annotations

import asyncio
import html
import re
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from everwork import Access, Everwork
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.server.http import ui
from everwork.server.http.framework.body import BULK_BYTES_MAX
from everwork.server.http.ui.pages import PAGES

LINKS: Final = re.compile(r'href="([^"#]+)"')
ADDRESSES: Final = re.compile(r'(?:href|action|src|data-login)="([^"#]+)"')
CSRF: Final = re.compile(r'name="csrf" value="([0-9a-f]+)"')
KEY: Final = "a-key-for-the-dashboard-of-this-test"
CHUNK_BYTES: Final = 1_048_576


def everything(_request: Request) -> Access:
    return Access("ada", ["*"])


def only_look(_request: Request) -> Access:
    return Access("bob")


def nothing(_request: Request) -> None:
    return None


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Everwork]:
    """An application with one job, the first."""
    async with Everwork(f"sqlite:///{tmp_path}/jobs.db") as opened:
        await opened.enqueue("mail-send", to="ada@example.org")
        yield opened


def under(path: str, dashboard: ASGIApp) -> FastAPI:
    """A web application that has the dashboard under a path."""
    api = FastAPI()
    api.mount(path, dashboard)
    return api


def browser(web: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://web")


def behind(web: ASGIApp, proxy: str, *, is_in_path: bool) -> ASGIApp:
    """A server behind a proxy that takes a prefix away; uvicorn puts it back in front of the path, others do not."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        more = {"path": proxy + scope["path"], "raw_path": proxy.encode() + scope["raw_path"]} if is_in_path else {}
        await web({**scope, "root_path": proxy, **more}, receive, send)

    return served


async def walked(visitor: httpx.AsyncClient, start: str, proxy: str = "") -> set[str]:
    """Every address that is named on a page that links lead to, without queries but the names of types."""
    named, todo = {start}, [start]
    while todo:
        page = await visitor.get(todo.pop().removeprefix(proxy))
        assert page.status_code == 200, page.url
        links = {html.unescape(one) for one in LINKS.findall(page.text)}
        new = {one if "/type?" in one else one.partition("?")[0] for one in links} - named
        named |= new | {html.unescape(one) for one in ADDRESSES.findall(page.text)}
        todo += [one for one in new if "/static/" not in one]
    return named


WAYS: Final = {
    "deep": ("/a/b", ""),
    "at the top": ("/", ""),
    "with a name that is quoted": ("/a b/ü", ""),
    "behind a proxy, by uvicorn": ("/jobs", "/api"),
    "behind a proxy, by another server": ("/jobs", "/api"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_links_reach_every_page_and_stay_under_the_prefix(app: Everwork, way: str) -> None:
    path, proxy = WAYS[way]
    web: ASGIApp = under(path, app.dashboard(auth=everything))
    if proxy:
        web = behind(web, proxy, is_in_path="uvicorn" in way)
    prefix = httpx.URL(f"http://web{proxy}{path}").raw_path.decode().rstrip("/")
    async with browser(web) as visitor:
        named = await walked(visitor, f"{prefix}/", proxy)
        style = next(one for one in named if one.endswith("app.css"))
        assert (await visitor.get(style.removeprefix(proxy))).status_code == 200
    assert {one for one in named if not one.startswith(f"{prefix}/")} == set()
    inner = {re.sub(r"/\d+$", "/{key}", one.removeprefix(prefix).partition("?")[0]) for one in named}
    assert {page.path for page in PAGES} - inner == {"/jobs/{key}/text", "/trigger", "/login"}


def test_nothing_of_the_dashboard_names_the_prefix_of_a_server() -> None:
    folder = Path(ui.__file__).parent
    files = [one for one in folder.rglob("*.*") if one.suffix in {".py", ".html", ".js", ".css"}]
    named = {one.name for one in files if re.search(r"""["'`(]/ui\b""", one.read_text())}
    assert named == {"address.py"}, "make addresses with address('/path')"


async def test_an_action_is_done_by_its_visitor_and_leads_back_to_its_page(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        page = await visitor.get("/a/b/jobs/1")
        form = {"csrf": CSRF.findall(page.text)[0], "back": "/a/b/jobs/1", "sure": "yes"}
        answer = await visitor.post("/a/b/jobs/1/cancel", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/a/b/jobs/1")
        paths = [one for _, one in answer.headers.multi_items() if "Path=" in one]
        assert paths
        assert all("Path=/a/b;" in one and "HttpOnly" in one for one in paths)
        assert (await app.get(1)).state is State.CANCELLED
        audit = (await visitor.get("/a/b/audit")).text
    assert "jobs.cancel" in audit
    assert "ada" in audit


async def test_a_page_of_another_site_is_no_place_to_lead_back_to(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        token = CSRF.findall((await visitor.get("/a/b/types")).text)[0]
        for back in ("/", "/a", "/a/bc", "//evil.example/a/b", "/a/b/../../x", "https://evil.example"):
            form = {"csrf": token, "back": back, "type": "mail-send", "sure": "yes"}
            answer = await visitor.post("/a/b/type/pause", data=form)
            assert answer.headers["location"] == "/a/b/", back


async def test_a_form_holds_in_every_process_of_the_web_application(app: Everwork) -> None:
    first, second = (under("/a/b", app.dashboard(auth=everything)) for _ in range(2))
    async with browser(first) as visitor, browser(second) as again:
        token = CSRF.findall((await visitor.get("/a/b/types")).text)[0]
        again.cookies = visitor.cookies
        form = {"csrf": token, "type": "mail-send", "sure": "yes"}
        assert (await again.post("/a/b/type/pause", data=form)).status_code == 303
        assert (await again.post("/a/b/type/pause", data=form | {"csrf": "0"})).status_code == 403


# Who is let in ------------------------------------------------------------------------------------------


async def test_who_is_refused_sees_nothing(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=nothing))) as visitor:
        for path in ("/", "/jobs", "/jobs/1", "/jobs/1/text", "/settings"):
            page = await visitor.get(f"/a/b{path}")
            assert page.status_code == 403, path
            assert "mail-send" not in page.text
        assert (await visitor.post("/a/b/jobs/1/cancel", data={"csrf": "", "sure": "yes"})).status_code == 403
        live = await visitor.get("/a/b/live", params={"path": "/a/b/jobs"})
        assert "event: ended" in live.text
        assert "event: page" not in live.text
    assert (await app.get(1)).state is State.PENDING


async def test_who_may_only_look_is_offered_nothing_else(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=only_look))) as visitor:
        page = await visitor.get("/a/b/jobs/1")
        assert page.status_code == 200
        assert "read only" in page.text
        assert "/cancel" not in page.text
        form = {"csrf": CSRF.findall(page.text)[0], "sure": "yes"}
        assert (await visitor.post("/a/b/jobs/1/cancel", data=form)).status_code == 403
        assert (await visitor.get("/a/b/keys")).status_code == 403
    assert (await app.get(1)).state is State.PENDING


async def test_there_is_no_login_where_the_application_checks(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        assert (await visitor.get("/a/b/login")).status_code == 404
        assert "Log out" not in (await visitor.get("/a/b/")).text


async def test_a_check_may_send_visitors_elsewhere_or_raise_as_its_application_does(app: Everwork) -> None:
    async def to_login(request: Request) -> Response:
        return RedirectResponse(f"/login?next={request.url.path}", 303)

    def unknown(_request: Request) -> Access:
        raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})

    async with browser(under("/a/b", app.dashboard(auth=to_login))) as visitor:
        assert (await visitor.get("/a/b/jobs")).headers["location"] == "/login?next=/a/b/jobs"
        assert "event: ended" in (await visitor.get("/a/b/live", params={"path": "/a/b/jobs"})).text
    async with browser(under("/a/b", app.dashboard(auth=unknown))) as visitor:
        answer = await visitor.get("/a/b/jobs")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Basic")
    async with browser(app.dashboard(auth=unknown)) as visitor:  # Served on its own.
        answer = await visitor.get("/jobs")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Basic")


async def test_a_path_that_visitors_choose_leads_to_no_other_host(app: Everwork) -> None:
    async with browser(under("/{shop:path}/jobs", app.dashboard(auth=everything))) as visitor:
        page = await visitor.get("http://web//example.org/jobs/")
    assert page.status_code == 200
    assert {one for one in ADDRESSES.findall(page.text) if not one.startswith("/example.org/jobs/")} == set()


async def test_a_plain_check_may_block_because_it_runs_in_a_thread(app: Everwork) -> None:
    threads: list[int] = []

    def check(_request: Request) -> Access:
        threads.append(threading.get_ident())
        return Access("ada")

    async with browser(under("/a/b", app.dashboard(auth=check))) as visitor:
        assert (await visitor.get("/a/b/")).status_code == 200
    assert threads
    assert threading.get_ident() not in threads


async def test_a_check_may_read_the_form_that_its_page_gets_then(app: Everwork) -> None:
    async def check(request: Request) -> Access | None:
        fields = parse_qs((await request.body()).decode())
        return Access("ada", ["*"]) if request.method == "GET" or fields["sure"] == ["yes"] else None

    async with browser(under("/a/b", app.dashboard(auth=check))) as visitor:
        token = CSRF.findall((await visitor.get("/a/b/jobs/1")).text)[0]
        cancelling = visitor.post("/a/b/jobs/1/cancel", data={"csrf": token, "sure": "yes"})
        assert (await asyncio.wait_for(cancelling, 45)).status_code == 303
    assert (await app.get(1)).state is State.CANCELLED


async def test_a_check_does_not_read_more_than_any_page_takes(app: Everwork) -> None:
    async def check(request: Request) -> Access | None:
        await request.body()
        return None

    async def endless() -> AsyncIterator[bytes]:
        for sent in range(BULK_BYTES_MAX // CHUNK_BYTES + 2):
            assert sent <= BULK_BYTES_MAX // CHUNK_BYTES, "it is still read"
            yield bytes(CHUNK_BYTES)

    dashboard = app.dashboard(auth=check, api=True)
    for web, path in ((under("/a/b", dashboard), "/a/b"), (dashboard, "")):
        async with browser(web) as visitor:
            assert (await visitor.post(f"{path}/api/v1/jobs", content=endless())).status_code == 413


async def test_a_key_that_a_checked_visitor_creates_is_listed(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        page = (await visitor.get("/a/b/keys")).text
        form = {"csrf": CSRF.findall(page)[0], "name": "ci-key", "permission": "jobs"}
        assert (await visitor.post("/a/b/keys/create", data=form)).status_code == 200
        assert "ci-key" in (await visitor.get("/a/b/keys")).text


async def test_what_is_no_access_lets_nobody_in(app: Everwork) -> None:
    def check(_request: Request) -> Any:
        return True

    async with browser(under("/a/b", app.dashboard(auth=check))) as visitor:
        with pytest.raises(BadConfiguration, match="auth must return an Access or None, not True"):
            await visitor.get("/a/b/")


async def test_without_a_check_visitors_log_in_with_a_key(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERWORK_API_KEY", KEY)
    async with browser(under("/a/b", app.dashboard())) as visitor:
        refused = await visitor.get("/a/b/jobs?state=failed")
        assert refused.headers["location"] == "/a/b/login?next=%2Fa%2Fb%2Fjobs%3Fstate%3Dfailed"
        assert 'action="/a/b/login"' in (await visitor.get("/a/b/login")).text
        assert (await visitor.post("/a/b/login", data={"key": "another"})).status_code == 401
        entered = await visitor.post("/a/b/login", data={"key": KEY, "next": "/a/b/jobs"})
        assert entered.headers["location"] == "/a/b/jobs"
        page = await visitor.get("/a/b/jobs")
        assert "Log out" in page.text
        left = await visitor.post("/a/b/logout", data={"csrf": CSRF.findall(page.text)[0]})
        assert left.headers["location"] == "/a/b/login"
        assert (await visitor.get("/a/b/jobs")).status_code == 303


async def test_at_the_top_who_logs_in_without_a_page_in_mind_gets_to_the_first_one(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERWORK_API_KEY", KEY)
    async with browser(under("/", app.dashboard())) as visitor:
        entered = await visitor.post("/login", data={"key": KEY})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")


async def test_only_on_request_it_is_open_to_everybody(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(public=True))) as visitor:
        assert (await visitor.get("/a/b/settings")).status_code == 200


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"auth": everything, "public": True}, "pass either auth= or public=True, not both"),
        ({"auth": "secret"}, "auth must be a function that takes the request, not 'secret'"),
    ],
)
def test_a_dashboard_that_cannot_be_meant_is_refused(tmp_path: Path, more: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadConfiguration, match=problem):
        Everwork(f"sqlite:///{tmp_path}/jobs.db").dashboard(**more)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("",), "name"),
        (("ada", ["write"]), "permissions: must be among jobs:read, jobs, admin, \\*, not 'write'"),
        (("ada", "jobs"), "permissions: must be a list of strings, not 'jobs'"),
        (("ada", []), "return None to deny access"),
    ],
)
def test_an_access_says_what_it_may_be(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Access(*arguments)


# The REST API beside it ---------------------------------------------------------------------------------


def by_token(request: Request) -> Access | None:
    """A check that goes by a cookie: one of two tenants, or nobody."""
    tenant = request.cookies.get("tenant")
    return None if tenant is None else Access(tenant, ["jobs"], [tenant])


async def test_the_api_beside_it_has_the_same_callers(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=by_token, api=True))) as caller:
        for path in ("/api/v1/jobs", "/api/v1/jobs/1", "/openapi.json", "/docs", "/api/v1/nothing"):
            refused = await caller.get(f"/a/b{path}")
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied"), path
        assert (await caller.post("/a/b/api/v1/jobs", json={"type": "mail-send"})).status_code == 403
        caller.cookies.set("tenant", "acme")
        created = (await caller.post("/a/b/api/v1/jobs", json={"type": "mail-send"})).json()
        assert created["tenant"] == "acme"
        assert [one["key"] for one in (await caller.get("/a/b/api/v1/jobs")).json()["jobs"]] == [created["key"]]
        assert (await caller.put("/a/b/api/v1/jobs/1/cancel")).status_code == 404
        assert (await caller.get("/a/b/api/v1/keys")).status_code == 403
        unknown = await caller.get("/a/b/api/v1/nothing")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        for path in ("/metrics", "/healthz", "/readyz"):
            assert (await caller.get(f"/a/b{path}")).status_code == 404, path
    assert (await app.get(1)).state is State.PENDING


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}]
)
@pytest.mark.parametrize("more", [{"auth": everything}, {"public": True}])
async def test_the_api_takes_no_changes_from_pages_of_other_sites(
    app: Everwork, headers: dict[str, str], more: dict[str, Any]
) -> None:
    async with browser(under("/a/b", app.dashboard(api=True, **more))) as caller:
        refused = await caller.put("/a/b/api/v1/jobs/1/cancel", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        assert (await app.get(1)).state is State.PENDING
        own = {"Origin": "http://web"} if "Origin" in headers else {"Sec-Fetch-Site": "same-origin"}
        assert (await caller.put("/a/b/api/v1/jobs/1/cancel", headers=own)).status_code == 200


async def test_without_a_check_the_api_takes_keys_and_no_sessions(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERWORK_API_KEY", KEY)
    async with browser(under("/a/b", app.dashboard(api=True))) as caller:
        await caller.post("/a/b/login", data={"key": KEY})
        assert (await caller.get("/a/b/jobs")).status_code == 200
        assert (await caller.get("/a/b/api/v1/jobs")).status_code == 401
        assert (await caller.get("/a/b/api/v1/jobs", headers={"X-API-Key": KEY})).status_code == 200
        described = (await caller.get("/a/b/openapi.json")).json()
        assert described["servers"] == [{"url": "/a/b"}]
        assert "ApiKey" in described["components"]["securitySchemes"]


async def test_without_being_asked_for_there_is_no_api(app: Everwork) -> None:
    async with browser(under("/a/b", app.dashboard(auth=everything))) as caller:
        assert (await caller.get("/a/b/api/v1/jobs")).status_code == 404
        assert (await caller.post("/a/b/api/v1/jobs", json={"type": "mail-send"})).status_code == 404


# With its application -----------------------------------------------------------------------------------


async def test_it_opens_its_application_and_goes_on_after_a_close(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        for _ in range(2):
            assert (await visitor.get("/a/b/")).status_code == 200
            await app.close()


async def test_without_its_store_it_answers_so(tmp_path: Path) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/missing/jobs.db")
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        answer = await visitor.get("/a/b/")
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_unavailable")


async def test_a_live_page_connects_again_from_time_to_time(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everwork.server.http.mounted.LIVE_SECONDS", 0)
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        events = (await visitor.get("/a/b/live", params={"path": "/a/b/jobs?state=pending"})).text
    assert re.findall(r"event: (\w+)", events) == ["page", "again"]
    assert "/a/b/jobs/1" in events


@pytest.fixture
def uvicorn_server() -> Iterator[uvicorn.Server]:
    """A server that gets the signals of this process, as long as it is there."""
    server = uvicorn.Server(uvicorn.Config("unused"))
    before = signal.signal(signal.SIGTERM, server.handle_exit)
    yield server
    signal.signal(signal.SIGTERM, before)


async def test_a_live_page_does_not_hold_up_a_server_that_stops(
    app: Everwork, uvicorn_server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.server.http.mounted.LIVE_SECONDS", 3_600)
    async with browser(under("/a/b", app.dashboard(auth=everything))) as visitor:
        streaming = asyncio.create_task(visitor.get("/a/b/live", params={"path": "/a/b/jobs"}))
        await visitor.get("/a/b/")
        assert not streaming.done()
        uvicorn_server.handle_exit(signal.SIGTERM, None)
        assert (await streaming).status_code == 200
