"""The page of API keys: made, shown once, and revoked."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx

from everwork.service.access.principal import Permission, Principal
from tests.server.http.serving import Rest
from tests.server.http.ui.visiting import Visitor, visiting


async def made(visitor: Visitor, **fields: str | Sequence[str]) -> httpx.Response:
    """The answer to the form for a new key."""
    return await visitor.post("/ui/keys/create", "/ui/keys", **fields)


async def test_a_key_is_shown_once_and_opens_what_was_ticked(visitor: Visitor) -> None:
    asked = {"name": "shop", "permission": ["jobs"], "tenants": "acme, umbrella", "days": "30", "rate": "5"}
    answer = await made(visitor, **asked)
    assert answer.status_code == 200
    [text] = re.findall(r'id="key-text"[^>]*>(ew_[^<]+)<', answer.text)
    assert "data-live" not in answer.text
    [key] = await visitor.rest.keys.list()
    assert (key.name, key.tenants, key.rate_per_second) == ("shop", ("acme", "umbrella"), 5.0)
    assert abs((key.expires_at_ms or 0) - key.created_at_ms - 30 * 86_400_000) < 60_000
    assert (await visitor.rest("GET", "/jobs", headers={"X-API-Key": text})).status_code == 200
    page = await visitor.page("/ui/keys")
    assert text not in page
    for told in ("shop", key.id, "live", "acme, umbrella"):
        assert told in page, told
    [(action, target, detail)] = await visitor.audit()
    assert (action, target, detail["name"]) == ("keys.create", key.id, "shop")
    assert text not in str(detail)


async def test_a_revoked_key_opens_nothing_any_more(visitor: Visitor) -> None:
    new = await visitor.rest.keys.create("shop", ["jobs"])
    said = await visitor.done("/ui/keys/revoke", "/ui/keys", id=new.key.id)
    assert said["text"] == "Key shop is revoked. Requests with it are rejected, and its sessions have ended."
    assert (await visitor.rest("GET", "/jobs", headers={"X-API-Key": new.text})).status_code == 401
    page = await visitor.page("/ui/keys")
    assert ("revoked" in page, f'value="{new.key.id}"' in page) == (True, False)
    assert [(action, target) for action, target, _ in await visitor.audit()] == [("keys.revoke", new.key.id)]
    assert (await visitor.done("/ui/keys/revoke", id="none"))["text"] == "API key 'none' not found"


MISTAKES = [
    ({"permission": "jobs"}, "name", "is required"),
    ({"name": "a"}, "permission", ""),
    ({"name": "a", "permission": "fly"}, "permission", "fly"),
    ({"name": "a", "permission": "jobs", "days": "soon"}, "days", "must be a number, not 'soon'"),
    ({"name": "a", "permission": "jobs", "days": "-1"}, "days", "must be a number from 0.01 to 3650"),
    ({"name": "a", "permission": "jobs", "rate": "nan"}, "rate", "must be a number"),
    ({"name": "a", "permission": "jobs", "tenants": "a\tb"}, "tenants", ""),
]


async def test_what_cannot_be_made_is_told_at_its_field_and_what_was_typed_stays(visitor: Visitor) -> None:
    for fields, field, told in MISTAKES:
        answer = await made(visitor, **fields)
        assert answer.status_code == 422, fields
        [problem] = re.findall(rf'id="p-{field}" role="alert">([^<]+)<', answer.text)
        assert told in problem.replace("&#39;", "'"), (fields, problem)
        assert f'value="{fields.get("name", "")}"' in answer.text
        assert (fields.get("permission") == "jobs") == ('value="jobs" checked' in answer.text)
    assert (await visitor.rest.keys.list(), await visitor.audit()) == ([], [])


async def test_nobody_makes_a_key_that_may_do_more_than_they_themselves(local: Rest) -> None:
    for own in (["admin"], ["admin", "jobs"], ["admin", "jobs:read"]):
        async with visiting(local, *own, rate_per_second=50.0) as somebody:
            page = await somebody.page("/ui/keys")
            may = Principal("1", "ann", frozenset(map(Permission, own))).allows
            for wished in Permission:
                assert (f'name="permission" value="{wished.value}"' in page) == may(wished)
                answer = await made(somebody, name="more", permission=wished.value)
                assert answer.status_code == (200 if may(wished) else 403), (own, wished)
            assert (await made(somebody, name="fast", permission="admin", rate="51")).status_code == 403
    allowed = {one for key in await local.keys.list() if key.name == "more" for one in key.permissions}
    assert (Permission.ALL in allowed, {key.rate_per_second for key in await local.keys.list()}) == (False, {50.0})


async def test_nobody_revokes_a_key_that_may_do_more_than_they_themselves(local: Rest) -> None:
    root, worker = await local.keys.create("root", ["*"]), await local.keys.create("worker", ["jobs"])
    async with visiting(local, "admin") as somebody:
        page = await somebody.page("/ui/keys")
        assert (f'value="{root.key.id}"' in page, f'value="{worker.key.id}"' in page) == (False, True)
        answer = await somebody.post("/ui/keys/revoke", id=root.key.id, sure="yes")
        assert (answer.status_code, "cannot revoke key &#39;root&#39;" in answer.text) == (403, True)
    assert local.keys.authenticate(root.text).name == "root"


async def test_whoever_revokes_their_own_key_is_logged_out(local: Rest) -> None:
    async with visiting(local, "admin") as somebody:
        page = await somebody.page("/ui/keys")
        assert "This is the key of your own session." in page
        [id, _] = re.findall(r'name="id" value="(\w+)"', page)
        assert (await somebody.done("/ui/keys/revoke", "/ui/keys", id=id))["is_good"] is True
        assert (await somebody.get("/ui/keys")).headers["location"] == "/ui/login?next=%2Fui%2Fkeys"


# Sessions -----------------------------------------------------------------------------------------------


async def test_a_session_is_shown_with_its_place_and_ended_alone(visitor: Visitor) -> None:
    async with visiting(visitor.rest, "jobs") as other:
        page = await visitor.page("/ui/keys")
        sessions = page.partition('id="sessions"')[2]
        for told in ("EVERWORK_API_KEY", "somebody", "127.0.0.1", "yours"):
            assert told in sessions, told
        [theirs] = [
            one.id
            for one in await visitor.rest.service.sessions.opened(await visitor.rest.keys.list())
            if one.who == "somebody"
        ]
        said = await visitor.done("/ui/sessions/end", "/ui/keys", id=theirs)
        assert said["text"] == "The session of somebody has ended."
        assert (await other.get("/ui")).headers["location"].startswith("/ui/login")
    assert [(action, target) for action, target, _ in await visitor.audit()] == [("sessions.end", theirs)]
    assert (await visitor.done("/ui/sessions/end", id=theirs))["text"] == f"session '{theirs}' not found"


async def test_all_sessions_end_at_once_also_the_own_one(visitor: Visitor) -> None:
    link = await visitor.rest.service.sessions.new_link("ann")
    async with visiting(visitor.rest, "*") as other:
        assert (await visitor.done("/ui/sessions/end-all", "/ui/keys"))["text"] == "2 sessions have ended."
        for one in (visitor, other):
            assert (await one.get("/ui")).headers["location"].startswith("/ui/login")
        late = await other.client.post("/ui/login", data={"token": link})
        assert late.status_code == 401
    [(action, target, detail)] = await visitor.audit()
    assert (action, target, detail) == ("sessions.end-all", "*", {"ended": 2, "kept": 0})


async def test_an_administrator_is_offered_no_end_of_a_session_that_may_do_more(visitor: Visitor) -> None:
    async with visiting(visitor.rest, "admin") as admin:
        page = (await admin.page("/ui/keys")).partition('id="sessions"')[2]
        [root] = [one.id for one in await visitor.rest.service.sessions.opened([]) if one.key_id == "environment"]
        assert (root in page, f'value="{root}"' in page) == (True, False)
        assert (await admin.post("/ui/sessions/end", id=root, sure="yes")).status_code == 403
        said = await admin.done("/ui/sessions/end-all")
        assert said["text"] == "1 session has ended. 1 with more permissions than yours is still open."
    assert (await visitor.get("/ui")).status_code == 200
