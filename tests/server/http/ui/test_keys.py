"""The page of API keys: made, shown once, and revoked."""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx

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
    async with visiting(local, "admin") as somebody:
        assert 'value="*"' not in await somebody.page("/ui/keys")
        assert (await made(somebody, name="more", permission="*")).status_code == 403
        assert [key.name for key in await local.keys.list()] == ["somebody"]


async def test_whoever_revokes_their_own_key_is_logged_out(local: Rest) -> None:
    async with visiting(local, "admin") as somebody:
        page = await somebody.page("/ui/keys")
        assert "This is the key of your own session." in page
        [id] = re.findall(r'name="id" value="(\w+)"', page)
        assert (await somebody.done("/ui/keys/revoke", "/ui/keys", id=id))["is_good"] is True
        assert (await somebody.get("/ui/keys")).headers["location"] == "/ui/login?next=%2Fui%2Fkeys"
