"""Types, groups, keys and the audit log over REST."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from everwork.service.access.principal import Permission, Principal
from tests.server.http.serving import JOBS, Rest, serving
from tests.stores import url_of

TYPE = "/api/v1/types/email-send"


async def test_a_paused_type_starts_no_job_until_it_is_resumed(rest: Rest) -> None:
    job = await rest.job()
    asked = {"type": "email-send", "worker": "w"}
    assert await rest.ok("PUT", f"{TYPE}/pause") == {"type": "email-send", "paused": True}
    assert (await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"] == []
    assert (await rest.ok("GET", f"{JOBS}/{job['key']}"))["explanation"]["reason"] == "paused"
    [listed] = (await rest.ok("GET", "/api/v1/types"))["types"]
    assert (listed["type"], listed["paused"], listed["jobs"]["pending"]) == ("email-send", True, 1)
    assert await rest.ok("PUT", f"{TYPE}/resume") == {"type": "email-send", "paused": False}
    assert len((await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"]) == 1


async def test_a_policy_is_set_shown_obeyed_and_taken_away(rest: Rest) -> None:
    await rest.job()
    assert (await rest.ok("GET", f"{TYPE}/policy"))["default"] is True
    put = await rest.ok("PUT", f"{TYPE}/policy", {"max_attempts": 2, "base": 7})
    assert (put["default"], put["policy"]["max_attempts"], put["policy"]["factor"]) == (False, 2, 2.0)
    assert (await rest.job())["max_attempts"] == 2
    assert await rest.ok("GET", f"{TYPE}/policy") == put
    assert (await rest("DELETE", f"{TYPE}/policy")).status_code == 204
    assert (await rest.ok("GET", f"{TYPE}/policy"))["policy"]["max_attempts"] == 5


async def test_a_breaker_that_is_not_open_is_reset_without_harm(rest: Rest) -> None:
    await rest.job()
    assert await rest.ok("PUT", f"{TYPE}/breaker/reset") == {"type": "email-send", "was_open": False}


async def test_a_type_is_deleted_with_its_finished_jobs(rest: Rest) -> None:
    key = (await rest.job())["key"]
    refused = await rest.refused(422, "DELETE", TYPE)
    assert refused["detail"] == "type: 'email-send' has 1 unfinished job; cancel them first"
    await rest.engine.cancel([int(key)])
    assert await rest.ok("DELETE", TYPE) == {"type": "email-send", "deleted": 1}
    assert (await rest.ok("GET", "/api/v1/types"))["types"] == []


async def test_a_type_with_slashes_in_its_name_is_reached(local: Rest) -> None:
    await local.job(type="mail/send/ü")
    path = "/api/v1/types/mail%2Fsend%2F%C3%BC"
    assert (await local.ok("PUT", f"{path}/pause"))["type"] == "mail/send/ü"
    assert (await local.ok("PUT", f"{path}/breaker/reset"))["type"] == "mail/send/ü"


@pytest.mark.parametrize("group", ["policy", "pause", "a/groups/b", "..", "ü %"])
async def test_a_group_may_be_called_like_a_part_of_a_path(local: Rest, group: str) -> None:
    for type in ("t", "t/groups"):
        await local.engine.add_group(type, group)
        await local.ok("PUT", f"/api/v1/types/{quote(type, safe='')}/policy", {"max_attempts": 2})
    name = quote(group, safe="").replace("..", "%2E%2E")
    dropped = await local.ok("DELETE", f"/api/v1/types/t/groups/{name}")
    assert (dropped["type"], dropped["group"]) == ("t", group)
    assert (await local.ok("GET", "/api/v1/types/t%2Fgroups/policy"))["default"] is False
    assert [one["type"] for one in (await local.ok("GET", "/api/v1/groups"))["groups"]] == ["t/groups"]


async def test_a_name_that_is_no_text_is_at_no_path(local: Rest) -> None:
    for path in ("/api/v1/types/%FF/pause", "/api/v1/types//pause", "/api/v1/types/a/b/pause"):
        assert (await local.refused(404, "PUT", path))["code"] == "not_found"


async def test_a_group_is_listed_and_dropped(rest: Rest) -> None:
    await rest.job()
    await rest.engine.add_group("email-send", "auditors")
    await rest.job()
    [group] = (await rest.ok("GET", "/api/v1/groups"))["groups"]
    assert (group["type"], group["group"], group["jobs"]["pending"]) == ("email-send", "auditors", 1)
    asked = {"type": "email-send", "worker": "w", "group": "auditors"}
    [copy] = (await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"]
    assert copy["group"] == "auditors"
    dropped = await rest.ok("DELETE", f"{TYPE}/groups/auditors")
    assert dropped == {"type": "email-send", "group": "auditors", "cancelled": 0}
    assert (await rest.ok("GET", "/api/v1/groups"))["groups"] == []


async def test_what_does_not_exist_is_not_found(local: Rest) -> None:
    for method, path in [
        ("PUT", "/api/v1/types/none/resume"),
        ("PUT", "/api/v1/types/none/breaker/reset"),
        ("GET", "/api/v1/types/none/policy"),
        ("DELETE", "/api/v1/types/none/policy"),
        ("DELETE", "/api/v1/types/none"),
        ("DELETE", "/api/v1/types/none/groups/none"),
        ("DELETE", "/api/v1/keys/none"),
    ]:
        assert (await local.refused(404, method, path))["code"] == "not_found"


async def test_a_new_key_is_shown_once_works_at_once_and_ends_at_once(rest: Rest) -> None:
    made = await rest("POST", "/api/v1/keys", {"name": "ci", "permissions": ["jobs:read"], "tenants": ["acme"]})
    assert made.status_code == 201
    header = {"X-API-Key": made.json()["key"]}
    assert (await rest("GET", "/jobs", headers=header)).status_code == 200
    [listed] = (await rest.ok("GET", "/api/v1/keys"))["keys"]
    assert (listed["name"], listed["state"], listed["tenants"]) == ("ci", "live", ["acme"])
    assert "key" not in listed
    assert made.json()["key"] not in (await rest("GET", "/api/v1/audit")).text
    revoked = await rest.ok("DELETE", f"/api/v1/keys/{listed['id']}")
    assert revoked["state"] == "revoked"
    assert (await rest("GET", "/jobs", headers=header)).status_code == 401


def a_key(**limits: Any) -> dict[str, Any]:
    """A request for a key."""
    return {"name": "new", "permissions": ["admin"], **limits}


@pytest.mark.parametrize("own", [["admin"], ["admin", "jobs"], ["admin", "jobs:read"], ["admin", "tick"], ["*"]])
async def test_a_key_makes_and_revokes_no_key_that_may_do_more(local: Rest, own: list[str]) -> None:
    header, may = await local.key(*own), Principal("1", "ann", frozenset(map(Permission, own))).allows
    for wished in Permission:
        made = await local("POST", "/api/v1/keys", a_key(permissions=[wished.value]), headers=header)
        assert made.status_code == (201 if may(wished) else 403), wished
        theirs = await local.keys.create("theirs", [wished.value])
        revoked = await local("DELETE", f"/api/v1/keys/{theirs.key.id}", headers=header)
        is_stronger = wished is Permission.ALL and "*" not in own
        assert revoked.status_code == (403 if is_stronger else 200), wished


async def test_a_key_makes_no_key_that_lives_longer_or_calls_more_often(local: Rest) -> None:
    ends_ms = 4_000_000_000_000
    header = await local.key("admin", expires_at_ms=ends_ms, rate_per_second=50)
    for more in ({"expires_at": "2096-10-02T07:06:41Z"}, {"rate_per_second": 50.001}):
        refusal = await local.refused(403, "POST", "/api/v1/keys", a_key(**more), headers=header)
        assert refusal["code"] == "permission_denied"
    made = await local.ok("POST", "/api/v1/keys", a_key(), headers=header)
    assert (made["expires_at"], made["rate_per_second"]) == ("2096-10-02T07:06:40.000Z", 50)
    less = {"expires_at": "2096-10-02T07:06:39Z", "rate_per_second": 49}
    assert (await local.ok("POST", "/api/v1/keys", a_key(**less), headers=header))["rate_per_second"] == 49


async def test_wrong_wishes_for_keys_name_the_field(local: Rest) -> None:
    wishes: list[tuple[dict[str, Any], str]] = [
        ({"permissions": ["jobs"]}, "name"),
        ({"name": "x"}, "permissions"),
        ({"name": "x", "permissions": []}, "permissions"),
        ({"name": "x", "permissions": ["root"]}, "permissions[0]"),
        ({"name": "x", "permissions": ["jobs"], "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "permissions": ["jobs"], "rate_per_second": 0}, "rate_per_second"),
        ({"name": "x", "permissions": ["jobs"], "tenants": [""]}, "tenants[0]"),
    ]
    for wish, field in wishes:
        assert (await local.refused(422, "POST", "/api/v1/keys", wish))["field"] == field


async def test_the_audit_log_says_who_did_what_from_where(rest: Rest) -> None:
    key = await rest.key("admin")
    await rest.job()
    await rest.ok("PUT", f"{TYPE}/pause", headers=key)
    dead = await rest.dead_letter(type="other")
    await rest.ok("DELETE", f"{JOBS}/{dead['key']}")
    entries = (await rest.ok("GET", "/api/v1/audit"))["entries"]
    assert [(entry["action"], entry["target"], entry["who"]) for entry in entries] == [
        ("jobs.delete", dead["key"], "EVERWORK_API_KEY"),
        ("types.pause", "email-send", "somebody"),
    ]
    assert {entry["origin"] for entry in entries} == {"127.0.0.1"}


async def test_the_audit_log_is_read_page_by_page(local: Rest) -> None:
    for _ in range(5):
        await local.ok("PUT", f"{TYPE}/pause")
    first = await local.ok("GET", "/api/v1/audit", params={"limit": 3})
    second = await local.ok("GET", "/api/v1/audit", params={"limit": 3, "cursor": first["next"]})
    names = [entry["name"] for entry in first["entries"] + second["entries"]]
    assert (len(set(names)), second["next"]) == (5, None)
    assert names == sorted(names, reverse=True)


FORGED = {"X-Forwarded-For": "6.6.6.6", "Forwarded": "for=6.6.6.6", "X-Real-IP": "6.6.6.6"}


async def origin(rest: Rest, headers: Any) -> str:
    """Where the audit log says that a call came from."""
    await rest.ok("PUT", f"{TYPE}/pause", headers=headers)
    return str((await rest.ok("GET", "/api/v1/audit", params={"limit": 1}))["entries"][0]["origin"])


async def test_nobody_forges_where_a_call_comes_from(local: Rest) -> None:
    assert await origin(local, FORGED) == "127.0.0.1"


async def test_a_trusted_proxy_tells_where_a_call_comes_from(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path), trusted_proxies=("127.0.0.0/8", "10.0.0.1")) as rest:
        assert await origin(rest, {"X-Forwarded-For": "6.6.6.6, 203.0.113.9, 10.0.0.1"}) == "203.0.113.9"
        assert await origin(rest, {"X-Forwarded-For": "6.6.6.6, <script>"}) == "127.0.0.1"
        assert await origin(rest, {}) == "127.0.0.1"
        twice = [("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "203.0.113.9")]
        assert await origin(rest, twice) == "203.0.113.9"


async def test_figures_for_prometheus_tell_jobs_calls_and_outcomes(rest: Rest) -> None:
    job = await rest.leased()
    await rest.ok("PUT", f"{JOBS}/{job['key']}/complete")
    other = await rest.leased()
    await rest.ok("PUT", f"{JOBS}/{other['key']}/complete", {"attempt": 1})
    await rest("GET", "/nowhere")
    answer = await rest("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    assert 'everwork_jobs{state="completed",type="email-send"} 2' in lines
    assert 'everwork_calls_total{door="rest",method="completeJob",status="200"} 2.0' in lines
    assert 'everwork_calls_total{door="rest",method="unknown",status="404"} 1.0' in lines
    assert 'everwork_unfenced_outcomes_total{door="rest"} 1.0' in lines
    assert 'everwork_pollers{door="rest"} 0.0' in lines


async def test_sessions_are_listed_and_ended_alone_and_together(local: Rest) -> None:
    sessions, header = local.service.sessions, await local.key("*")
    holder = local.keys.authenticate(header["X-API-Key"])
    first, second = [await sessions.begin(holder, local.keys, f"203.0.113.{one}") for one in (1, 2)]
    listed = (await local.ok("GET", "/api/v1/sessions"))["sessions"]
    assert {(one["id"], one["opened_by"], one["key_id"], one["origin"]) for one in listed} == {
        (first.id, "somebody", holder.id, "203.0.113.1"),
        (second.id, "somebody", holder.id, "203.0.113.2"),
    }
    assert all(one["opened_at"] < one["expires_at"] for one in listed)
    assert first.token not in str(listed)
    assert (await local.ok("DELETE", f"/api/v1/sessions/{first.id}"))["id"] == first.id
    assert (await local.refused(404, "DELETE", f"/api/v1/sessions/{first.id}"))["code"] == "not_found"
    assert await local.ok("DELETE", "/api/v1/sessions") == {"ended": 1, "kept": 0}
    assert (await local.ok("GET", "/api/v1/sessions")) == {"sessions": []}
    noted = [one["action"] for one in (await local.ok("GET", "/api/v1/audit"))["entries"]]
    assert noted == ["sessions.end-all", "sessions.end"]
