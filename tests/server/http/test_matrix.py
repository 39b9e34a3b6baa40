"""Every operation with every kind of key. The operations come from the application's own routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.routing import Route

from everwork.server.http.operations import Operation, PathDoor
from everwork.service.keys import host_clock
from tests.door.waiting import until
from tests.server.http.matrix import PUBLIC, ROWS, TENANT, UNBOUND, Row
from tests.server.http.serving import JOBS, Rest, serving


def operations(rest: Rest) -> Iterator[Operation]:
    """What the application answers, found by walking its routes."""
    for route in rest.door.app.routes:
        assert isinstance(route, Route), f"{route} is no route of the table"
        assert isinstance(route.app, PathDoor), f"{route.path} is outside of the table"
        yield from route.app.operations.values()


async def statuses(rest: Rest, header: Any) -> dict[str, int]:
    """How the call of each row ends with one key; None stands for the right one."""
    found = {}
    for operation in operations(rest):
        row = ROWS[operation.id]
        path = row.path.format(await row.prepare(rest)) if row.prepare else row.path
        mine = await right_key(rest, operation.id, row) if header is None else header
        found[operation.id] = await status(rest, operation, path, mine)
    return found


async def status(rest: Rest, operation: Operation, path: str, header: Any) -> int:
    """How one call ends that brings no other key than the given one."""
    async with httpx.AsyncClient(base_url=rest.url, verify=False) as stranger:
        answer = await stranger.request(operation.method, path, json=ROWS[operation.id].body, headers=header)
    return answer.status_code


async def right_key(rest: Rest, id: str, row: Row) -> dict[str, str]:
    """The smallest key that the row asks for."""
    return await rest.key(row.permission, tenants=() if id in UNBOUND else (TENANT,))


async def test_every_route_has_a_row_and_every_row_a_route(local: Rest) -> None:
    assert {operation.id for operation in operations(local)} == set(ROWS)


async def test_the_right_key_opens_every_door(local: Rest) -> None:
    assert await statuses(local, None) == {id: row.right for id, row in ROWS.items()}


async def test_a_key_that_only_reads_changes_nothing(local: Rest) -> None:
    header = await local.key("jobs:read")
    assert await statuses(local, header) == {id: row.read_only for id, row in ROWS.items()}


async def test_the_right_key_of_another_tenant_is_refused_on_every_item(local: Rest) -> None:
    header = await local.key("jobs", "admin", tenants=("other",))
    assert await statuses(local, header) == {id: row.foreign for id, row in ROWS.items()}


BAD_KEYS: Final[dict[str, Callable[[Rest], Awaitable[Any]]]] = {}


def bad_key(make: Callable[[Rest], Awaitable[Any]]) -> Callable[[Rest], Awaitable[Any]]:
    """One more thing that is no good key."""
    BAD_KEYS[make.__name__] = make
    return make


@bad_key
async def no_key(rest: Rest) -> Any:
    return {}


@bad_key
async def an_empty_key(rest: Rest) -> Any:
    return {"X-API-Key": ""}


@bad_key
async def a_wrong_key(rest: Rest) -> Any:
    good = (await rest.key("*"))["X-API-Key"]
    return {"X-API-Key": good[:-2] + ("AA" if good[-2:] != "AA" else "BB")}


@bad_key
async def a_revoked_key(rest: Rest) -> Any:
    made = await rest.keys.create("gone", ["*"])
    await rest.keys.revoke(made.key.id)
    return {"X-API-Key": made.text}


@bad_key
async def an_expired_key(rest: Rest) -> Any:
    made = await rest.keys.create("old", ["*"], expires_at_ms=host_clock() + 50)
    await until(lambda: host_clock() > (made.key.expires_at_ms or 0))
    return {"X-API-Key": made.text}


@bad_key
async def two_keys(rest: Rest) -> Any:
    good = (await rest.key("*"))["X-API-Key"]
    return [("X-API-Key", good), ("Authorization", f"Bearer {good}")]


@bad_key
async def a_password(rest: Rest) -> Any:
    return {"Authorization": "Basic cm9vdDpyb290"}


@pytest.mark.parametrize("make", BAD_KEYS.values(), ids=BAD_KEYS.keys())
async def test_nothing_but_what_is_public_opens_to(local: Rest, make: Callable[[Rest], Awaitable[Any]]) -> None:
    header = await make(local)
    found = {one.id: await status(local, one, ROWS[one.id].path.format("1"), header) for one in operations(local)}
    assert found == {id: row.right if id in PUBLIC else 401 for id, row in ROWS.items()}


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


async def test_a_key_that_calls_too_often_is_told_when_to_come_again(local: Rest) -> None:
    key = await local.key("jobs:read", rate_per_second=0.01)
    await local.ok("GET", "/jobs", headers=key)
    answer = await local("GET", "/jobs", headers=key)
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_requests")
    assert 0 < int(answer.headers["retry-after"]) <= 100
