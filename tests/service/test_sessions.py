"""Dashboard sessions: who opened them, when and from where, when they expire, and how they are ended."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import pytest

from everwork.core.limits import SESSION_MS, SESSIONS_PER_KEY_MAX
from everwork.exceptions import NotFound, PermissionDenied, Unauthenticated
from everwork.service.access.keys import ENVIRONMENT, KeyRing
from everwork.service.access.principal import ANYBODY, Permission, Principal
from everwork.service.access.sessions import EndedSessions, Session, Sessions, holder_of
from tests.stores import START_MS

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock

CHOSEN: Final = "correct-horse-battery"
"""A key with all permissions that a person has chosen."""
HERE: Final = "203.0.113.9"
ADMIN: Final = Principal("1", "ann", frozenset([Permission.ADMIN]))


@pytest.fixture
def keys(engine: Engine) -> KeyRing:
    """The keys of a server that was started with a chosen key."""
    return KeyRing(engine, environment_key=CHOSEN)


async def test_a_list_tells_who_opened_a_session_when_from_where_and_until_when(
    engine: Engine, keys: KeyRing, clock: VirtualClock
) -> None:
    sessions = Sessions(engine)
    new = await keys.create("ops", ["jobs"], tenants=["acme"])
    by_key = await sessions.begin(keys.authenticate(new.text), keys, HERE)
    clock.advance(ms=1)
    by_link = await sessions.follow(await sessions.new_link("ann"), "::1")
    clock.advance(ms=1)
    by_environment = await sessions.begin(ENVIRONMENT, keys, HERE)
    listed = await sessions.opened(await keys.list())
    assert [(one.id, one.key_id, one.who, one.origin, one.opened_at_ms) for one in listed] == [
        (by_environment.id, "environment", "EVERWORK_API_KEY", HERE, START_MS + 2),
        (by_link.id, "login-link", "ann", "::1", START_MS + 1),
        (by_key.id, new.key.id, "ops", HERE, START_MS),
    ]
    assert {one.expires_at_ms - one.opened_at_ms for one in listed} == {SESSION_MS}
    clock.advance(ms=SESSION_MS - 1)
    assert [one.id for one in await sessions.opened(await keys.list())] == [by_environment.id]


async def test_a_session_ends_alone_or_with_all_others_and_the_links_that_nobody_followed(
    engine: Engine, keys: KeyRing
) -> None:
    sessions = Sessions(engine)
    first, second = [await sessions.begin(ENVIRONMENT, keys, HERE) for _ in range(2)]
    link = await sessions.new_link("ann")
    assert (await sessions.end_by_id(first.id, [], ANYBODY)).id == first.id
    assert [await sessions.find(one.token) for one in (first, second)] == [None, second]
    with pytest.raises(NotFound, match=f"session '{first.id}' not found"):
        await sessions.end_by_id(first.id, [], ANYBODY)
    assert await sessions.end_all([], ANYBODY) == EndedSessions(1, 0)
    assert await sessions.find(second.token) is None
    with pytest.raises(Unauthenticated):
        await sessions.follow(link, HERE)


async def test_an_administrator_ends_no_session_that_may_do_more(engine: Engine, keys: KeyRing) -> None:
    sessions = Sessions(engine)
    worker = await keys.create("worker", ["jobs"])
    weak = await sessions.begin(keys.authenticate(worker.text), keys, HERE)
    strong = [await sessions.begin(ENVIRONMENT, keys, HERE), await sessions.follow(await sessions.new_link(), HERE)]
    for one in strong:
        with pytest.raises(PermissionDenied, match=f"key 'ann' cannot end session '{one.id}'"):
            await sessions.end_by_id(one.id, await keys.list(), ADMIN)
    link = await sessions.new_link()
    assert await sessions.end_all(await keys.list(), ADMIN) == EndedSessions(1, 2)
    assert [await sessions.find(one.token) for one in (weak, *strong)] == [None, *strong]
    assert (await sessions.follow(link, HERE)).badge == "login-link"


async def test_a_session_of_a_revoked_key_is_in_no_list(engine: Engine, keys: KeyRing) -> None:
    sessions = Sessions(engine)
    new = await keys.create("ops", ["*"])
    await sessions.begin(keys.authenticate(new.text), keys, HERE)
    await keys.revoke(new.key.id)
    assert await sessions.opened(await keys.list()) == []


async def test_a_session_of_an_earlier_version_is_listed_too(engine: Engine, keys: KeyRing) -> None:
    await engine.register("session", "0" * 64, '{"token":"","badge":"login-link"}', SESSION_MS)
    [listed] = await Sessions(engine).opened(await keys.list())
    assert (listed.id, listed.who, listed.origin) == ("0" * 16, "login link", "unknown")


async def test_a_key_that_logs_in_too_often_loses_its_oldest_sessions(
    engine: Engine, keys: KeyRing, clock: VirtualClock
) -> None:
    sessions = Sessions(engine)
    other = await sessions.follow(await sessions.new_link(), HERE)
    opened = []
    for _ in range(SESSIONS_PER_KEY_MAX + 2):
        clock.advance(ms=1)
        opened.append(await sessions.begin(ENVIRONMENT, keys, HERE))
    listed = {one.id for one in await sessions.opened([])}
    assert listed == {one.id for one in opened[2:]} | {other.id}


# The key in the environment ------------------------------------------------------------------------------


async def test_a_session_lasts_as_long_as_the_key_of_the_environment_is_the_same(engine: Engine) -> None:
    before, after = KeyRing(engine, environment_key=CHOSEN), KeyRing(engine, environment_key=CHOSEN)
    session = await Sessions(engine).begin(ENVIRONMENT, before, HERE)
    assert holder_of(session, after) is ENVIRONMENT
    assert holder_of(session, KeyRing(engine, environment_key=f"{CHOSEN}2")) is None
    assert holder_of(session, KeyRing(engine)) is None
    assert holder_of(Session("another token", session.badge), before) is None


async def test_nothing_in_the_store_helps_to_guess_a_chosen_key(engine: Engine, keys: KeyRing) -> None:
    """Each session stores a different mark for the same key, so that no hash of a guess is in the store."""
    for _ in range(2):
        await Sessions(engine).begin(ENVIRONMENT, keys, HERE)
    stored = [entry.name + entry.body for entry in await engine.registered(None)]
    marks = [re.findall(r"environment-([0-9a-f]+)", text) for text in stored]
    assert (len({*map(str, marks)}), all(marks)) == (2, True)
    digest = sha256(CHOSEN.encode())
    guesses = [digest.hexdigest(), sha256(digest.digest()).hexdigest(), sha256(digest.hexdigest().encode()).hexdigest()]
    assert not any(guess[:16] in text for guess in guesses for text in stored)


@pytest.mark.parametrize("body", ["{", "[1]", "{}"])
async def test_a_damaged_session_is_over_and_keeps_nobody_from_logging_in(
    engine: Engine, keys: KeyRing, body: str
) -> None:
    sessions = Sessions(engine)
    damaged = await sessions.begin(ENVIRONMENT, keys, HERE)
    await engine.register("session", sha256(damaged.token.encode()).hexdigest(), body, SESSION_MS)
    new = await sessions.begin(ENVIRONMENT, keys, HERE)
    assert [one.id for one in await sessions.opened([])] == [new.id]
    found = await sessions.find(damaged.token)
    assert found is not None
    assert holder_of(found, keys) is None
