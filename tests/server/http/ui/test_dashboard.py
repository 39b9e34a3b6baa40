"""The way into every page and action of the dashboard: who may, what protects them, and what becomes of mistakes."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import pytest
import trustme

from everwork.server.http.ui import pages
from everwork.server.http.ui.address import SERVER
from tests.fleets import a_process, a_trigger
from tests.server.http.serving import DEADLINE_S, ROOT_KEY, Rest, serving
from tests.server.http.ui.visiting import Visitor, visiting
from tests.stores import url_of

PAGES: Final = [replace(one, path=SERVER.at(one.path)) for one in pages.PAGES]
ACTIONS: Final = [replace(one, path=SERVER.at(one.path)) for one in pages.ACTIONS]
"""By their addresses on a server."""

OPERATORS: Final = frozenset({"/ui/keys", "/ui/audit", "/ui/settings"})
FLEET: Final = frozenset({"/ui/types", "/ui/type", "/ui/breakers", "/ui/workers", "/ui/triggers", "/ui/trigger"})
JOBS: Final = frozenset({"/ui/jobs", "/ui/jobs/{key}", "/ui/jobs/{key}/text", "/ui/dead"})
CREATES: Final = frozenset({"/ui/jobs/new"})
OPEN: Final = frozenset({"/ui/login"})
NAMES: Final = {"/ui/type": "email-send", "/ui/trigger": "nightly-report"}

PAGES_OF: Final = {
    ("*",): JOBS | CREATES | FLEET | OPERATORS,
    ("jobs:read",): JOBS | FLEET,
    ("admin",): FLEET | OPERATORS,
    ("jobs", "acme"): JOBS | CREATES,
}
"""Which pages each sort of key sees (permission, tenant), besides the overview and the login."""

OF_JOBS: Final[dict[str, Mapping[str, str]]] = {
    "/ui/jobs/new": {"type": "email-send", "variables": "{}"},
    "/ui/jobs/change": {"act": "delete", "key": "{key}", "sure": "yes"},
    "/ui/jobs/{key}/cancel": {},
    "/ui/jobs/{key}/requeue": {},
    "/ui/jobs/{key}/requeue-with": {"variables": "{}"},
    "/ui/jobs/{key}/run-now": {},
    "/ui/jobs/{key}/retries": {"retries": "7"},
    "/ui/jobs/{key}/priority": {"priority": "7"},
    "/ui/jobs/{key}/delete": {},
    "/ui/dead/sure": {"act": "purge"},
    "/ui/dead/change": {"act": "purge", "until": "9999999999999"},
}
OF_STORE: Final[dict[str, Mapping[str, str]]] = {
    "/ui/type/pause": {"type": "email-send"},
    "/ui/type/resume": {"type": "email-send"},
    "/ui/type/delete": {"type": "email-send"},
    "/ui/type/policy": {"type": "email-send", "policy": "{}"},
    "/ui/type/policy-form": {"type": "email-send", "max_attempts": "3"},
    "/ui/type/policy-clear": {"type": "email-send"},
    "/ui/type/breaker-open": {"type": "email-send", "seconds": "60"},
    "/ui/type/breaker-reset": {"type": "email-send"},
    "/ui/workers/switch": {"worker": "mailer", "on": "no"},
    "/ui/workers/restart": {"process": "m1/0"},
    "/ui/triggers/switch": {"trigger": "nightly-report", "on": "no"},
    "/ui/triggers/fire": {"trigger": "nightly-report"},
    "/ui/keys/create": {"name": "spare", "permission": "jobs:read"},
    "/ui/keys/revoke": {"id": "{id}"},
    "/ui/sessions/end": {"id": "{id}"},
    "/ui/sessions/end-all": {},
}
OF_ANYBODY: Final = frozenset({"/ui/jobs/find", "/ui/login", "/ui/logout"})
"""What changes nothing but the visitor's own place."""


def place(path: str, key: str) -> str:
    """A path of the table as a browser asks for it."""
    return path.format(key=key) + (f"?name={NAMES[path]}" if path in NAMES else "")


async def a_store(rest: Rest) -> str:
    """Something for every page; the key of a dead letter."""
    await a_trigger(rest.engine)
    await a_process(rest.engine)
    return str((await rest.dead_letter(tenant="acme"))["key"])


def test_every_page_and_every_action_is_in_the_tables() -> None:
    assert {page.path for page in PAGES} == JOBS | CREATES | FLEET | OPERATORS | OPEN | {"/ui"}
    assert {action.path for action in ACTIONS} == {*OF_JOBS, *OF_STORE, *OF_ANYBODY}


async def test_without_a_session_nothing_is_shown_and_nothing_done(local: Rest) -> None:
    key = await a_store(local)
    async with httpx.AsyncClient(base_url=local.url, timeout=DEADLINE_S, headers={"X-API-Key": ROOT_KEY}) as stranger:
        for page in PAGES:
            answer = await stranger.get(place(page.path, key))
            assert answer.status_code == (200 if page.path in OPEN else 303), page.path
            assert page.path in OPEN or answer.headers["location"].startswith("/ui/login?next="), page.path
        for action in ACTIONS:
            answer = await stranger.post(place(action.path, key), data={"csrf": "", "key": key})
            assert answer.status_code == 401, action.path
            assert "nothing was changed" in answer.text or action.path in OPEN, action.path
    assert (await local.ok("GET", f"/api/v1/jobs/{key}"))["state"] == "failed"


@pytest.mark.parametrize("holder", PAGES_OF, ids="-".join)
async def test_each_key_sees_its_pages_and_is_refused_the_others(local: Rest, holder: tuple[str, ...]) -> None:
    key = await a_store(local)
    async with visiting(local, holder[0], tenants=holder[1:]) as somebody:
        menu = (await somebody.page("/ui")).partition("</nav>")[0]
        for path in JOBS | CREATES | FLEET | OPERATORS:
            answer = await somebody.get(place(path, key))
            assert answer.status_code == (200 if path in PAGES_OF[holder] else 403), path
            assert answer.headers["content-type"].startswith("text/")
            assert (f'<a href="{path}"' in menu) <= (path in PAGES_OF[holder]), path


@pytest.mark.parametrize("holder", PAGES_OF, ids="-".join)
async def test_no_link_leads_a_key_to_what_it_may_not_see(local: Rest, holder: tuple[str, ...]) -> None:
    key = await a_store(local)
    await local.leased(tenant="acme")
    await local.job(tenant="acme")
    await local.ok("PUT", "/api/v1/types/email-send/policy", {"breaker_failures": 3})
    async with visiting(local) as operator:
        assert (await operator.done("/ui/triggers/fire", trigger="nightly-report"))["is_good"]
        assert (await operator.done(f"/ui/jobs/{key}/retries", retries="2"))["is_good"]
    await local.server.context.sampler.fresh()
    async with visiting(local, holder[0], tenants=holder[1:]) as somebody:
        for path in {"/ui", *PAGES_OF[holder]}:
            shown = (await somebody.get(place(path, key))).text
            led = {re.sub(r"/\d+(?=/|$)", "/{key}", to) for to in re.findall(r'href="(/ui[^"?#]*)', shown)}
            walls = {to for to in led if not to.startswith("/ui/static/")} - PAGES_OF[holder] - OPEN - {"/ui"}
            assert walls == set(), path


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        (("jobs:read",), OF_JOBS | OF_STORE),
        (("admin",), OF_JOBS),
        (("jobs", "acme"), OF_STORE),
        (("*", "acme"), OF_STORE),
        (("jobs", "umbrella"), {path: fields for path, fields in OF_JOBS.items() if "{key}" in path} | OF_STORE),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, tuple) else "",
)
async def test_what_a_key_does_not_allow_is_refused_and_not_noted(
    local: Rest, holder: tuple[str, ...], refused: Mapping[str, Mapping[str, str]]
) -> None:
    key = await a_store(local)
    spare = (await local.keys.create("spare", ["jobs"])).key.id
    async with visiting(local, holder[0], tenants=holder[1:]) as somebody:
        for path, fields in refused.items():
            filled = {
                name: value.format(key=key, id=spare) if value != "{}" else value for name, value in fields.items()
            }
            answer = await somebody.post(place(path, key), **{"sure": "yes", **filled})
            is_missing = holder[1:] == ("umbrella",) and "{key}" in path and answer.status_code in (303, 404)
            assert answer.status_code == 403 or is_missing, (path, answer.text)
        assert await somebody.audit() == []
    assert (await local.ok("GET", f"/api/v1/jobs/{key}"))["state"] == "failed"


async def test_a_key_that_may_only_read_is_refused_by_every_action_whatever_it_brings(local: Rest) -> None:
    key = await a_store(local)
    async with visiting(local, "jobs:read") as reader:
        for action in ACTIONS:
            for fields in ({}, {"sure": "yes"}) if action.path not in OF_ANYBODY else ():
                assert (await reader.post(place(action.path, key), **fields)).status_code == 403, action.path


# What asks -----------------------------------------------------------------------------------------------

ASKED: Final = re.compile(r'action="(/ui[^"]+)"[^>]*data-confirm="([^"]+)"')


async def test_what_the_script_asks_about_is_asked_by_a_page_where_there_is_no_script(visitor: Visitor) -> None:
    key, waiting = await a_store(visitor.rest), (await visitor.rest.job())["key"]
    await visitor.rest.ok("PUT", "/api/v1/types/email-send/policy", {"breaker_failures": 3})
    await visitor.rest.keys.create("spare", ["jobs"])
    shown_pages = [place(page.path, key) for page in PAGES] + [f"/ui/jobs/{waiting}"]
    shown = "".join([(await visitor.get(page)).text for page in shown_pages])
    found = {re.sub(r"/\d+/", "/{key}/", path) for path, _ in ASKED.findall(shown)}
    assert found == {action.path for action in ACTIONS if action.confirms}


async def test_a_question_does_nothing_until_it_is_answered_and_loses_nothing(visitor: Visitor) -> None:
    job = await visitor.rest.job()
    [(path, asked)] = ASKED.findall((await visitor.get(f"/ui/jobs/{job['key']}")).text)
    fields = {"question": html.unescape(asked), "label": "Cancel", "reason": "<b>not \n meant</b>"}
    question = await visitor.post(path, "/ui/jobs?type=a%20b", **fields)
    assert (question.status_code, asked in question.text, "Cancel?" in question.text) == (200, True, True)
    assert (await visitor.rest.ok("GET", f"/api/v1/jobs/{job['key']}"))["state"] == "pending"
    form = question.text.partition('<div class="card sure">')[2]
    [to] = re.findall(r'action="([^"]+)"', form)
    sent = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)}
    answer = await visitor.client.post(to, data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?type=a%20b")
    [(action, target, detail)] = await visitor.audit()
    assert (action, target, detail) == ("jobs.cancel", job["key"], {"reason": "<b>not \n meant</b>"})


# What protects -------------------------------------------------------------------------------------------


async def test_a_form_of_another_site_or_without_the_sessions_token_does_nothing(visitor: Visitor) -> None:
    job = await visitor.rest.job()
    path = f"/ui/jobs/{job['key']}/cancel"
    forged: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"csrf": ""}, {}),
        ({"csrf": "0" * 64}, {}),
        ({"csrf": visitor.csrf}, {"Origin": "https://evil.example"}),
        ({"csrf": visitor.csrf}, {"Origin": "null"}),
        ({"csrf": visitor.csrf}, {"Sec-Fetch-Site": "cross-site"}),
        ({"csrf": visitor.csrf}, {"Sec-Fetch-Site": "same-site"}),
    ]
    for fields, headers in forged:
        answer = await visitor.client.post(path, data=fields, headers=headers)
        assert answer.status_code == 403, (fields, headers)
        assert "nothing was changed" in answer.text
    wrong = await visitor.client.post(path, json={"csrf": visitor.csrf})
    assert wrong.status_code == 415
    assert "Not a form" in wrong.text
    huge = await visitor.client.post(path, data={"csrf": visitor.csrf, "reason": "x" * 3_000_000})
    assert (huge.status_code, "Too large" in huge.text, "at most 2 MiB" in huge.text) == (413, True, True)
    assert (await visitor.rest.ok("GET", f"/api/v1/jobs/{job['key']}"))["state"] == "pending"
    fields = {"csrf": visitor.csrf, "sure": "yes"}
    assert (await visitor.client.post(path, data=fields, headers={"Origin": visitor.rest.url})).status_code == 303


async def test_pages_bring_nothing_from_elsewhere_and_are_kept_nowhere(visitor: Visitor) -> None:
    for path in ("/ui", "/ui/login", "/ui/none", "/ui/keys"):
        answer = await visitor.get(path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not [part for part in ("<style", " style=", " onclick=", "<script>") if part in answer.text]
        head = await visitor.client.head(path)
        assert (head.status_code, head.content) == (answer.status_code, b"")


async def test_a_cookie_goes_over_tls_alone_if_the_server_speaks_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    files: dict[str, Any] = {"tls_certificate": tmp_path / "both.pem", "tls_key": tmp_path / "both.pem"}
    async with serving(url_of("sqlite", tmp_path), **files) as rest:
        url = rest.url.replace("http:", "https:")
        async with httpx.AsyncClient(base_url=url, verify=False) as stranger:
            answer = await stranger.post("/ui/login", data={"key": ROOT_KEY})
            assert "Secure" in answer.headers["set-cookie"]


# Mistakes ------------------------------------------------------------------------------------------------


async def test_an_address_without_a_page_is_told_on_one(visitor: Visitor) -> None:
    for path in ("/ui/none", "/ui/jobs/1/none", "/ui/keys/"):
        page = await visitor.page(path, 404)
        assert "Not found" in page
        assert "Overview" in page
    assert "Job '999' not found" in await visitor.page("/ui/jobs/999", 404)
    assert "Job 'none' not found" in await visitor.page("/ui/jobs/none", 404)
    await visitor.page("/ui/jobs?type=%FF", 422)
    wrong = await visitor.client.put("/ui/jobs")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    async with httpx.AsyncClient(base_url=visitor.rest.url) as stranger:
        assert "<nav" not in (await stranger.get("/ui/none")).text
        assert (await stranger.get("/uinone")).headers["content-type"] == "application/problem+json"


async def test_without_authentication_everybody_is_in_and_forms_of_other_sites_are_not(tmp_path: Path) -> None:
    store = url_of("sqlite", tmp_path)
    async with serving(store, is_open=True) as rest, httpx.AsyncClient(base_url=rest.url) as anybody:
        page = (await anybody.get("/ui/keys")).text
        token = page.partition('name="csrf" value="')[2].partition('"')[0]
        made = {"name": "a", "permission": "jobs"}
        assert (await anybody.post("/ui/keys/create", data=made)).status_code == 403
        assert (await anybody.post("/ui/keys/create", data=made | {"csrf": token})).status_code == 200


# Live ----------------------------------------------------------------------------------------------------


async def event(lines: AsyncIterator[str]) -> tuple[str, str]:
    """The next event of a live page: its name, and what it says."""
    name = ""
    async with asyncio.timeout(DEADLINE_S):
        async for line in lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return name, str(orjson.loads(line.removeprefix("data: ")))
    raise AssertionError("the page is not followed any more")


async def test_a_page_is_followed_until_the_session_ends(visitor: Visitor) -> None:
    path = {"path": "/ui/jobs?type=email-send"}
    await visitor.page(path["path"])  # What is made for the first time takes long, and would be made seldom.
    async with visitor.client.stream("GET", "/ui/live", params=path) as followed:
        assert followed.headers["content-type"].startswith("text/event-stream")
        lines = followed.aiter_lines()
        name, page = await event(lines)
        assert (name, "<table" in page) == ("page", False)
        job = await visitor.rest.job(correlation_id="<b>")
        await visitor.rest.job(type="another")
        name, page = await event(lines)
        assert (name, f'data-key="{job["key"]}"' in page, "another" in page, "<b>" in page) == (
            "page",
            True,
            False,
            False,
        )
        await visitor.done("/ui/logout")
        while name == "page":
            name, page = await event(lines)
        assert (name, page) == ("ended", "the session has expired")


async def test_what_is_no_page_is_not_followed(visitor: Visitor) -> None:
    for path in ("/ui/none", "/ui/static/app.js", "/ui/live", "/ui/dead/change"):
        assert (await visitor.client.get("/ui/live", params={"path": path})).status_code == 404, path
