"""Every operation with every kind of key. The operations come from the application's own routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everwork.server.http.app import DashboardRoute
from everwork.server.http.framework.operations import Operation, PathHandler, SegmentRoute
from tests.server.http.matrix import CALLS, status_of
from tests.server.http.serving import JOBS, ROOT_KEY, Rest, serving
from tests.server.matrix import Holder, texts_of_keys


def operations(rest: Rest) -> Iterator[Operation]:
    """What the application answers to programs, found by walking its routes; pages have a matrix of their own."""
    for route in rest.server.app.routes:
        if isinstance(route, DashboardRoute):
            continue
        assert isinstance(route, SegmentRoute), f"{route} is no route of the table"
        assert isinstance(route.app, PathHandler), f"{route.path} is outside of the table"
        yield from route.app.operations.values()


async def status(rest: Rest, operation: Operation, header: Any) -> int:
    """How the call of an operation ends that brings no other key than the given one."""
    call = CALLS[operation.id]
    path = call.path.format(await call.prepare(rest)) if call.prepare else call.path
    async with httpx.AsyncClient(base_url=rest.url, verify=False) as stranger:
        return (await stranger.request(operation.method, path, json=call.body, headers=header)).status_code


async def test_every_route_has_a_call_and_every_call_a_route(local: Rest) -> None:
    assert {operation.id for operation in operations(local)} == set(CALLS)


@pytest.mark.parametrize("holder", Holder, ids=lambda holder: holder.name.lower())
async def test_every_operation_ends_as_the_key_allows(local: Rest, holder: Holder) -> None:
    text = (await texts_of_keys(local.keys))[holder]
    header = {} if text is None else {"X-API-Key": text}
    found = {operation.id: await status(local, operation, header) for operation in operations(local)}
    assert found == {id: status_of(call, holder) for id, call in CALLS.items()}


@pytest.mark.parametrize(
    "header",
    [
        {"X-API-Key": ""},
        {"X-API-Key": f"{ROOT_KEY}x"},
        {"Authorization": f"Basic {ROOT_KEY}"},
        {"Authorization": ROOT_KEY},
        {"Cookie": f"X-API-Key={ROOT_KEY}"},
        [("X-API-Key", ROOT_KEY), ("X-API-Key", ROOT_KEY)],
        [("X-API-Key", ROOT_KEY), ("Authorization", f"Bearer {ROOT_KEY}")],
    ],
)
async def test_what_is_not_exactly_one_good_key_is_none(local: Rest, header: Any) -> None:
    async with httpx.AsyncClient(base_url=local.url, verify=False) as stranger:
        assert (await stranger.get("/jobs", headers=header)).status_code == 401


async def test_nothing_is_public_but_what_is_meant_to_be(local: Rest) -> None:
    public = {operation.id for operation in operations(local) if not operation.permissions}
    assert public == {"healthz", "readyz", "getDocs", "getOpenApi", "home"}


async def test_a_bearer_token_is_as_good_as_the_header(local: Rest) -> None:
    good = (await local.key("jobs:read"))["X-API-Key"]
    del local.client.headers["X-API-Key"]
    assert (await local("GET", "/jobs", headers={"Authorization": f"bearer {good}"})).status_code == 200


async def test_a_refused_key_is_told_how_to_come_in_and_nothing_of_itself(local: Rest) -> None:
    answer = await local("GET", "/jobs", headers={"X-API-Key": "not-the-secret-key"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "not-the-secret-key" not in answer.text


async def test_a_bound_key_sees_its_own_jobs_and_no_others(local: Rest) -> None:
    mine = await local.job(tenant="acme")
    await local.job(tenant="other")
    key = await local.key("jobs", tenants=("acme",))
    listed = await local.ok("GET", "/jobs", headers=key)
    assert [job["key"] for job in listed["jobs"]] == [mine["key"]]
    assert (await local.ok("GET", "/api/v1/stats", headers=key))["total"] == 1
    refusal = await local.refused(403, "GET", "/jobs", params={"tenant": ["acme", "other"]}, headers=key)
    assert "other" in refusal["detail"]


async def test_a_bound_key_searches_its_own_jobs_only(local: Rest) -> None:
    marks = {"dedupe_key": "order-7", "variables": {"to": "ann@example.org"}}
    mine = await local.job(tenant="acme", **marks)
    await local.job(tenant="birch", **marks)
    key = await local.key("jobs", tenants=("acme",))
    for search in ({"dedupe_key": "order-7"}, {"variables": "ann@"}):
        page = await local.ok("GET", "/api/v1/jobs", params=search, headers=key)
        assert [job["key"] for job in page["jobs"]] == [mine["key"]]
        refusal = await local.refused(403, "GET", "/api/v1/jobs", params={**search, "tenant": "birch"}, headers=key)
        assert "birch" in refusal["detail"]


async def test_a_bound_key_creates_for_its_own_tenant_and_for_no_other(local: Rest) -> None:
    key = await local.key("jobs", tenants=("acme",))
    assert (await local.ok("POST", JOBS, {"type": "a"}, headers=key))["tenant"] == "acme"
    batch = [{"type": "a"}, {"type": "a", "tenant": "other"}]
    await local.refused(403, "POST", JOBS, batch, headers=key)
    assert (await local.ok("GET", "/api/v1/stats"))["total"] == 1


async def test_a_bound_key_requeues_its_own_dead_letters_only(local: Rest) -> None:
    mine = await local.dead_letter(tenant="acme")
    others = await local.dead_letter(tenant="other")
    key = await local.key("jobs", tenants=("acme",))
    assert await local.ok("POST", f"{JOBS}/requeue", {"all": True}, headers=key) == {"matched": 1, "changed": 1}
    assert (await local.ok("GET", f"{JOBS}/{mine['key']}"))["state"] == "pending"
    assert (await local.ok("GET", f"{JOBS}/{others['key']}"))["state"] == "failed"


async def test_a_bound_key_leases_jobs_of_its_own_tenant_only(local: Rest) -> None:
    await local.job(tenant="other")
    mine = await local.job(tenant="acme")
    key = await local.key("jobs", tenants=("acme",))
    leased = await local.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w"}, headers=key)
    assert [job["key"] for job in leased["jobs"]] == [mine["key"]]


async def test_a_server_without_authentication_lets_anybody_in(tmp_path: Path) -> None:
    async with serving(f"sqlite:///{tmp_path / 'jobs.db'}", is_open=True) as rest:
        assert (await rest.job())["tenant"] == "<default>"
        assert (await rest.ok("GET", "/api/v1/keys")) == {"keys": []}


async def test_a_server_without_authentication_cannot_be_given_a_strangers_name(tmp_path: Path) -> None:
    async with serving(f"sqlite:///{tmp_path / 'jobs.db'}", is_open=True) as rest:
        for host in ["evil.example", "127.0.0.1.evil.example:80", "[::1].evil.example", "[::1]@evil", ""]:
            assert (await rest("GET", "/jobs", headers={"Host": host})).status_code == 403
        for host in ["localhost", "LOCALHOST:1", "127.0.0.9:27555", "[::1]", "[::1]:27555"]:
            assert (await rest("GET", "/jobs", headers={"Host": host})).status_code == 200


FOREIGN_PAGES: Any = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:3000"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
]
OWN_CALLERS: Any = [
    {},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://other.name"},
    {"Host": "localhost:1", "Origin": "http://localhost:1"},
]


async def test_without_authentication_no_page_of_another_site_changes_anything(tmp_path: Path) -> None:
    async with serving(f"sqlite:///{tmp_path / 'jobs.db'}", is_open=True) as rest:
        job = f"{JOBS}/{(await rest.job())['key']}"
        for headers in FOREIGN_PAGES:
            for operation in operations(rest):
                if operation.method != "GET":
                    answer = await rest(operation.method, CALLS[operation.id].path.format("1"), headers=headers)
                    assert answer.status_code == 403, operation.id
                    assert "pages of other sites" in answer.json()["detail"]
            assert (await rest("GET", job, headers=headers)).status_code == 200
        for number, headers in enumerate(OWN_CALLERS):
            changed = {"priority": number}
            assert (await rest.ok("PUT", f"{job}/priority", changed, headers=headers))["priority"] == number


async def test_a_key_is_proof_enough_whatever_page_the_call_comes_from(local: Rest) -> None:
    for headers in FOREIGN_PAGES:
        assert (await local("POST", JOBS, {"type": "a"}, headers=headers)).status_code == 201


async def test_a_key_that_calls_too_often_is_told_when_to_come_again(local: Rest) -> None:
    key = await local.key("jobs:read", rate_per_second=0.01)
    await local.ok("GET", "/jobs", headers=key)
    answer = await local("GET", "/jobs", headers=key)
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert 0 < int(answer.headers["retry-after"]) <= 100
