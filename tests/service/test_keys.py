"""API keys: made once, kept as hashes, refused when they should be, known everywhere within a second."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.limits import API_KEY_KEEP_MS, INSTANT_MS_MAX
from everwork.exceptions import BadConfiguration, InvalidInput, NotFound, PermissionDenied, Unauthenticated
from everwork.service.access.api_key import KEY_KIND
from everwork.service.access.keys import KeyRing, NoAuthentication, forget_keys
from everwork.service.access.principal import ANYBODY, Permission, Principal
from everwork.service.upkeep import run_upkeep
from tests.app.waiting import until
from tests.stores import DAY_MS, START_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

ENVIRONMENT_KEY = "a-key-of-the-environment"


@pytest.fixture
async def ring(engine: Engine, clock: VirtualClock) -> AsyncIterator[KeyRing]:
    """The keys of the test's store."""
    made = KeyRing(engine, environment_key=None, clock=clock)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def elsewhere(engine: Engine, clock: VirtualClock) -> AsyncIterator[KeyRing]:
    """The same keys in another server, on an engine of its own."""
    other = engine.fresh()
    await other.open()
    made = KeyRing(other, environment_key=None, clock=clock)
    await made.open()
    yield made
    await made.close()
    await other.close()


def refusal(ring: KeyRing, text: str | None) -> str:
    """Why a key is refused."""
    with pytest.raises(Unauthenticated) as caught:
        ring.authenticate(text)
    return str(caught.value)


# What a key is ------------------------------------------------------------------------------------------


async def test_a_key_opens_the_door_for_what_it_was_made_for(ring: KeyRing) -> None:
    new = await ring.create("ci", ["jobs", "admin"], tenants=["acme"], expires_at_ms=START_MS + 1, rate_per_second=2.5)
    allowed = frozenset([Permission.JOBS, Permission.ADMIN])
    assert ring.authenticate(new.text) == Principal(new.key.id, "ci", allowed, ("acme",), START_MS + 1, 2.5)


async def test_a_key_says_whose_it_is_and_has_a_long_secret(ring: KeyRing) -> None:
    first, second = await ring.create("ci", ["*"]), await ring.create("ci", ["*"])
    prefix, id, secret = first.text.split("_", 2)
    assert (prefix, id) == ("ew", first.key.id)
    assert len(secret) >= 43
    assert secret not in second.text


async def test_the_store_keeps_the_hash_of_a_key_and_never_its_text(ring: KeyRing, engine: Engine) -> None:
    new = await ring.create("ci", ["jobs"])
    [entry] = await engine.registered(None)
    assert (entry.kind, entry.name, entry.until_ms) == (KEY_KIND, new.key.id, None)
    assert json.loads(entry.body)["sha256"] == sha256(new.text.encode()).hexdigest()
    assert new.text.split("_", 2)[2] not in entry.body + repr(new) + repr(ring.authenticate(new.text))


async def test_the_list_shows_every_key_without_secrets(ring: KeyRing, clock: VirtualClock) -> None:
    first = await ring.create("ci", ["jobs"])
    clock.advance(ms=1)
    second = await ring.create("ops", ["*"])
    await ring.revoke(first.key.id)
    listed = await ring.list()
    assert [(key.id, key.name, key.revoked_at_ms) for key in listed] == [
        (first.key.id, "ci", START_MS + 1),
        (second.key.id, "ops", None),
    ]


# Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, ""])
async def test_no_key_is_told_where_to_put_one(ring: KeyRing, text: str | None) -> None:
    assert refusal(ring, text) == "no API key: send it in the x-api-key metadata/header"


@pytest.mark.parametrize(
    "text",
    ["x", "ew_", "ew__", "ew_abc_", "x" * 1_000_000, "schlüssel-für-alle", "\0" * 20, "\ud800 lone", " ", "ew_\n_a"],
    ids=lambda text: ascii(text)[:20],
)
async def test_whatever_was_never_made_is_unknown(ring: KeyRing, text: str) -> None:
    await ring.create("ci", ["*"])
    assert refusal(ring, text) == "unknown API key"


async def test_a_known_id_with_another_secret_is_unknown_whatever_became_of_the_key(ring: KeyRing) -> None:
    new = await ring.create("ci", ["*"])
    forged = [new.text[:-1], new.text + "x", new.text.upper(), f"ew_{new.key.id}_", f"ew_{new.key.id}_{'0' * 64}"]
    assert {refusal(ring, text) for text in forged} == {"unknown API key"}
    await ring.revoke(new.key.id)
    assert {refusal(ring, text) for text in forged} == {"unknown API key"}


async def test_the_stored_hash_is_no_key(ring: KeyRing) -> None:
    new = await ring.create("ci", ["*"])
    digest = sha256(new.text.encode()).hexdigest()
    assert refusal(ring, digest) == refusal(ring, f"ew_{new.key.id}_{digest}") == "unknown API key"


async def test_an_expired_key_says_so(ring: KeyRing, clock: VirtualClock) -> None:
    new = await ring.create("ci", ["jobs"], expires_at_ms=START_MS + DAY_MS)
    holder = ring.authenticate(new.text)
    clock.advance(ms=DAY_MS - 1)
    assert ring.is_live(holder)
    clock.advance(ms=1)
    assert (refusal(ring, new.text), ring.is_live(holder)) == ("the API key has expired", False)


async def test_a_revoked_key_is_refused_at_once_and_says_so(ring: KeyRing) -> None:
    new = await ring.create("ci", ["jobs"])
    holder = ring.authenticate(new.text)
    assert ring.is_live(holder)
    revoked = await ring.revoke(new.key.id)
    assert revoked.revoked_at_ms == START_MS
    assert (refusal(ring, new.text), ring.is_live(holder)) == ("the API key was revoked", False)


async def test_a_key_is_revoked_once(ring: KeyRing, clock: VirtualClock) -> None:
    new = await ring.create("ci", ["jobs"])
    first = await ring.revoke(new.key.id)
    clock.advance(ms=5)
    assert await ring.revoke(new.key.id) == first


@pytest.mark.every_engine
async def test_keys_that_ended_long_ago_are_deleted_and_others_stay(
    ring: KeyRing, engine: Engine, clock: VirtualClock
) -> None:
    expiring = await ring.create("expiring", ["jobs"], expires_at_ms=clock() + DAY_MS)
    later = await ring.create("later", ["jobs"], expires_at_ms=clock() + 2 * DAY_MS)
    revoked, live = [await ring.create(name, ["jobs"]) for name in ("revoked", "live")]
    clock.advance(ms=DAY_MS)
    await ring.revoke(revoked.key.id)
    clock.advance(ms=API_KEY_KEEP_MS - 1)
    assert await forget_keys(engine, clock) == 0
    clock.advance(ms=1)
    assert await forget_keys(engine, clock) == 2
    assert {key.id for key in await ring.list()} == {later.key.id, live.key.id}
    assert ring.admit(live.text).name == "live"
    await ring._refresh()
    assert refusal(ring, expiring.text) == refusal(ring, revoked.text) == "unknown API key"


async def test_a_wrong_clock_alone_deletes_no_key(ring: KeyRing, engine: Engine, clock: VirtualClock) -> None:
    await ring.create("expiring", ["jobs"], expires_at_ms=clock() + DAY_MS)
    assert await forget_keys(engine, lambda: clock() + 10 * API_KEY_KEEP_MS) == 0
    host_ms = clock()
    clock.advance(ms=10 * API_KEY_KEEP_MS)
    assert await forget_keys(engine, lambda: host_ms) == 0


async def test_maintenance_deletes_keys_that_ended_long_ago(ring: KeyRing, engine: Engine, clock: VirtualClock) -> None:
    await ring.create("expiring", ["jobs"], expires_at_ms=clock() + DAY_MS)
    clock.advance(ms=API_KEY_KEEP_MS + DAY_MS)
    await run_upkeep(engine, "tick", ())
    assert await ring.list() == []


async def test_a_key_that_is_not_there_cannot_be_revoked(ring: KeyRing) -> None:
    await ring.create("ci", ["jobs"])
    with pytest.raises(NotFound, match="API key 'nobody' not found"):
        await ring.revoke("nobody")
    for bad in ("", "x" * 1_000_000, "a\0b"):
        with pytest.raises(InvalidInput, match="id: must "):
            await ring.revoke(bad)


async def test_an_entry_that_somebody_has_spoilt_opens_nothing_and_disturbs_no_other(
    ring: KeyRing, engine: Engine
) -> None:
    good, spoilt = await ring.create("good", ["jobs"]), await ring.create("spoilt", ["jobs"])
    [body] = [entry.body for entry in await engine.registered(KEY_KIND) if entry.name == spoilt.key.id]
    changes: list[dict[str, Any]] = [
        {"permissions": ["everything"]},
        {"permissions": "*"},
        {"tenants": None},
        {"tenants": "acme"},
        {"expires_at_ms": "never"},
        {"rate_per_second": -1},
        {"sha256": "zz"},
        {"name": 5},
    ]
    for broken in ["", "[]", "{}", *(json.dumps(json.loads(body) | change) for change in changes)]:
        await engine.register(KEY_KIND, spoilt.key.id, broken)
        await ring._refresh()
        assert refusal(ring, spoilt.text) == "unknown API key"
        await engine.register(KEY_KIND, spoilt.key.id, body)
        await ring._refresh()
    assert ring.authenticate(good.text).name == "good"
    assert len(await ring.list()) == 2


# Several servers ----------------------------------------------------------------------------------------


async def test_what_one_server_makes_and_revokes_another_knows_by_itself(ring: KeyRing, elsewhere: KeyRing) -> None:
    new = await ring.create("ci", ["jobs"])
    await until(lambda: new.key.id in elsewhere._known)
    holder = elsewhere.authenticate(new.text)
    await ring.revoke(new.key.id)
    await until(lambda: not elsewhere.is_live(holder))
    assert refusal(elsewhere, new.text) == "the API key was revoked"


async def test_known_keys_go_on_while_the_engine_is_away(ring: KeyRing, elsewhere: KeyRing) -> None:
    new = await ring.create("ci", ["jobs"])
    await until(lambda: new.key.id in elsewhere._known)
    await elsewhere._engine.close()
    loop = elsewhere._refreshing
    assert loop is not None
    await until(lambda: loop.errors > 0)
    assert elsewhere.authenticate(new.text).name == "ci"


async def test_a_ring_can_be_closed_twice(ring: KeyRing) -> None:
    await ring.close()
    await ring.close()


# What may be said of a new key --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"name": ""}, "name: must have 1 to 255 characters, not 0"),
        ({"name": "x" * 256}, "name: must have 1 to 255 characters, not 256"),
        ({"name": "a\0b"}, "name: must consist of printable characters"),
        ({"name": 5}, "name: must be a string, not 5"),
        ({"permissions": []}, "permissions: must be a list of at least one of \\*, jobs, jobs:read, admin"),
        ({"permissions": "jobs"}, "permissions: must be a list of at least one of"),
        ({"permissions": ["jobs", "job"]}, "permissions: must be one of \\*, jobs, jobs:read, admin, tick, not 'job'"),
        ({"permissions": [[]]}, "permissions: must be one of"),
        ({"tenants": "acme"}, "tenants: must be a list of at most 1,000 names"),
        ({"tenants": [""]}, "tenants: must have 1 to 255 characters, not 0"),
        ({"tenants": ["t"] * 1_001}, "tenants: must be a list of at most 1,000 names"),
        ({"expires_at_ms": START_MS}, "expires_at: must be in the future"),
        ({"expires_at_ms": INSTANT_MS_MAX + 1}, "expires_at: must be a whole number from 0 to"),
        ({"rate_per_second": 0}, "rate_per_second: must be a number from 0.001 to 1000000, not 0"),
        ({"rate_per_second": float("nan")}, "rate_per_second: must be a number"),
    ],
    ids=str,
)
async def test_a_wrong_wish_is_refused_by_name_and_makes_nothing(
    ring: KeyRing, engine: Engine, said: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        await ring.create(**({"name": "ci", "permissions": ["jobs"]} | said))
    assert await engine.registered(KEY_KIND) == []


def a_creator(*permissions: Permission, tenants: tuple[str, ...] = ()) -> Principal:
    return Principal("1", "ann", frozenset(permissions), tenants)


async def test_an_administrator_grants_what_it_has(ring: KeyRing) -> None:
    admin = a_creator(Permission.ADMIN)
    assert (await ring.create("ci", ["admin", "tick"], creator=admin)).key.permissions == (
        Permission.ADMIN,
        Permission.TICK,
    )
    for other in ("jobs", "jobs:read", "*"):
        with pytest.raises(
            PermissionDenied, match=f"key 'ann' lacks the permission '{re.escape(other)}', and cannot grant it"
        ):
            await ring.create("ci", ["admin", other], creator=admin)


async def test_everything_is_granted_by_whoever_has_it(ring: KeyRing) -> None:
    assert ring.authenticate((await ring.create("ops", ["*"], creator=ANYBODY)).text).allows(Permission.ALL)


@pytest.mark.parametrize(
    "creator",
    [
        a_creator(Permission.JOBS),
        a_creator(Permission.JOBS_READ),
        a_creator(),
        a_creator(Permission.ADMIN, tenants=("acme",)),
        a_creator(Permission.ALL, tenants=("acme",)),
    ],
    ids=str,
)
async def test_whoever_is_no_administrator_of_the_whole_store_makes_no_key(ring: KeyRing, creator: Principal) -> None:
    with pytest.raises(PermissionDenied):
        await ring.create("ci", ["jobs:read"], tenants=["acme"], creator=creator)
    assert list(await ring.list()) == []


# The key of the environment, and no key at all ----------------------------------------------------------


async def test_the_key_of_the_environment_may_do_everything_and_is_stored_nowhere(engine: Engine) -> None:
    ring = KeyRing(engine, environment_key=ENVIRONMENT_KEY)
    holder = ring.authenticate(ENVIRONMENT_KEY)
    assert (holder.id, holder.allows(Permission.ALL), holder.tenants) == ("environment", True, ())
    assert ring.is_live(holder)
    assert await engine.registered(None) == []
    assert ENVIRONMENT_KEY not in repr(holder)
    assert refusal(ring, ENVIRONMENT_KEY[:-1]) == "unknown API key"


async def test_without_it_nobody_is_the_environment(ring: KeyRing, engine: Engine) -> None:
    holder = KeyRing(engine, environment_key=ENVIRONMENT_KEY).authenticate(ENVIRONMENT_KEY)
    assert (refusal(ring, ENVIRONMENT_KEY), ring.is_live(holder)) == ("unknown API key", False)


@pytest.mark.parametrize(
    "text", ["", "x" * 11, "x" * 513, "schlüssel-für-alle", "with a space in it", "tab\tinside-it"]
)
async def test_a_key_of_the_environment_that_is_no_secret_is_refused_unseen(engine: Engine, text: str) -> None:
    with pytest.raises(BadConfiguration, match="EVERWORK_API_KEY") as caught:
        KeyRing(engine, environment_key=text)
    assert not text or text not in str(caught.value)


async def test_an_open_door_asks_nobody(engine: Engine) -> None:
    door = NoAuthentication(engine, rate_limit=1)
    await door.open()
    answers = [door.admit(text) for text in (None, "", "anything", "x" * 1_000_000)]
    assert answers == [ANYBODY] * 4
    assert door.is_live(ANYBODY)
    await door.close()


async def test_behind_an_open_door_keys_can_be_made_for_the_day_it_is_closed(engine: Engine, ring: KeyRing) -> None:
    new = await NoAuthentication(engine).create("ci", ["jobs"])
    await ring._refresh()
    assert ring.authenticate(new.text).name == "ci"
