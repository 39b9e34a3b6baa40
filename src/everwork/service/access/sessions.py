"""Dashboard sessions: started with an API key or a one-time link, kept as hashes in the registry, listed and ended."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import orjson

from everwork.aio.clocks import host_clock_ms
from everwork.codec.json import decode_shown
from everwork.core import checks
from everwork.core.limits import LOGIN_LINK_MS, NAME_CHARS_MAX, SESSION_MS, SESSIONS_PER_KEY_MAX
from everwork.engines.contract import Engine
from everwork.engines.values import Registered
from everwork.exceptions import NotFound, PermissionDenied, Unauthenticated
from everwork.service.access.api_key import ApiKey, KeyState
from everwork.service.access.grants import outranks
from everwork.service.access.keys import ENVIRONMENT, KeyRing
from everwork.service.access.principal import Permission, Principal

SESSION: Final = "session"
LINK: Final = "login-link"
TOKEN_BYTES: Final = 32
TOKEN_CHARS_MAX: Final = 100
ID_CHARS: Final = 16
OPERATOR: Final = Principal("login-link", "login link", frozenset([Permission.ALL]))
"""The principal of a user who logged in with a link printed on the server's own terminal."""


@dataclass(frozen=True, slots=True)
class Session:
    """A logged-in user. Only the browser knows the `token`; `badge` names the key (`KeyRing.badge`)."""

    token: str
    badge: str

    @property
    def id(self) -> str:
        """Identifies the session in lists, without revealing the token."""
        return _name(self.token)[:ID_CHARS]

    @property
    def csrf(self) -> str:
        """The CSRF token that every form of the session must send: other sites cannot know it."""
        return hmac.new(self.token.encode(), b"everwork form", sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session in a list: who opened it, how, when and from where, and when it expires.

    `name` is the hash of its token. `key_id` is the id of the API key, `environment` or `login-link`; for a link, `who`
    is the user who created it.
    """

    name: str
    key_id: str
    who: str
    opened_at_ms: int
    expires_at_ms: int
    origin: str
    permissions: tuple[Permission, ...] = (Permission.ALL,)
    tenants: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Identifies the session in lists."""
        return self.name[:ID_CHARS]

    @property
    def is_by_link(self) -> bool:
        """Whether the session started with a login link."""
        return self.key_id == OPERATOR.id


@dataclass(frozen=True, slots=True)
class EndedSessions:
    """How many sessions were ended, and how many were kept because they have more permissions than the caller."""

    ended: int
    kept: int


class Sessions:
    """The sessions of one store, valid on all of its servers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # Visits -------------------------------------------------------------------------------------

    async def begin(self, principal: Principal, keys: KeyRing, origin: str) -> Session:
        """Start a session for the holder of a key; it ends when it expires or the key becomes invalid."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        return await self._begin(Session(token, keys.badge(principal, token)), principal.name, origin)

    async def find(self, token: str) -> Session | None:
        """The session of a token; None if it does not exist or has expired."""
        entry = await self._entry(SESSION, token)
        return None if entry is None else Session(token, _text(entry, "badge"))

    async def end(self, session: Session) -> None:
        """Log out."""
        await self._engine.unregister(SESSION, _name(session.token))

    async def new_link(self, who: str = "") -> str:
        """Create a short-lived login link and return its token; the first user to follow it becomes an operator."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        body = orjson.dumps({"who": who[:NAME_CHARS_MAX]}).decode()
        await self._engine.register(LINK, _name(token), body, LOGIN_LINK_MS)
        return token

    async def follow(self, token: str, origin: str) -> Session:
        """Start a session with the token of a login link; each link works only once."""
        link = await self._entry(LINK, token)
        if link is None or not await self._engine.unregister(LINK, link.name):
            raise Unauthenticated("this link was already used or has expired; create a new one with: everwork login")
        return await self._begin(Session(secrets.token_urlsafe(TOKEN_BYTES), OPERATOR.id), _text(link, "who"), origin)

    # Administration -----------------------------------------------------------------------------

    async def opened(self, keys: Iterable[ApiKey]) -> list[OpenSession]:
        """The open sessions, newest first, except those whose keys are no longer valid."""
        now_ms = host_clock_ms()
        live = {key.id: key for key in keys if key.state(now_ms) is KeyState.LIVE}
        found = [_open_session(entry, live) for entry in await self._engine.registered(SESSION)]
        listed = [one for one in found if one is not None]
        return sorted(listed, key=lambda one: (one.opened_at_ms, one.id), reverse=True)

    async def end_by_id(self, id: str, keys: Iterable[ApiKey], principal: Principal) -> OpenSession:
        """End a session, unless it has more permissions than the caller."""
        checks.name("id", id)
        for one in await self.opened(keys):
            if one.id == id:
                if outranks(one.permissions, one.tenants, principal):
                    raise PermissionDenied(
                        f"key '{principal.name}' cannot end session '{id}', which has more permissions"
                    )
                await self._engine.unregister(SESSION, one.name)
                return one
        raise NotFound("session", id)

    async def end_all(self, keys: Iterable[ApiKey], principal: Principal) -> EndedSessions:
        """End all sessions, except those with more permissions than the caller; `*` also invalidates unused links."""
        found = await self.opened(keys)
        ends = [one for one in found if not outranks(one.permissions, one.tenants, principal)]
        if principal.allows(Permission.ALL):
            for link in await self._engine.registered(LINK):
                await self._engine.unregister(LINK, link.name)
        for one in ends:
            await self._engine.unregister(SESSION, one.name)
        return EndedSessions(len(ends), len(found) - len(ends))

    # Internals ----------------------------------------------------------------------------------

    async def _begin(self, session: Session, who: str, origin: str) -> Session:
        await self._make_room(session.badge)
        entry = {"badge": session.badge, "who": who[:NAME_CHARS_MAX], "origin": origin[:NAME_CHARS_MAX]}
        await self._engine.register(SESSION, _name(session.token), orjson.dumps(entry).decode(), SESSION_MS)
        return session

    async def _entry(self, kind: str, token: str) -> Registered | None:
        """The entry of a session or link that has not expired."""
        if not token or len(token) > TOKEN_CHARS_MAX:
            return None
        name = _name(token)
        found = await self._engine.last_registered(kind, 1, f"{name}~")
        return found[0] if found and found[0].name == name else None

    async def _make_room(self, badge: str) -> None:
        """End the oldest sessions of a key that has too many, so that logins do not fill the registry."""
        own = [entry for entry in await self._engine.registered(SESSION) if _key_id(entry) == _key_id_of(badge)]
        oldest = sorted(own, key=lambda entry: entry.until_ms or 0)
        for entry in oldest[: max(0, len(own) - SESSIONS_PER_KEY_MAX + 1)]:
            await self._engine.unregister(SESSION, entry.name)


def holder_of(session: Session, keys: KeyRing) -> Principal | None:
    """The principal of a session; None if the key that started it is no longer valid."""
    return OPERATOR if session.badge == OPERATOR.id else keys.holder(session.badge, session.token)


def _open_session(entry: Registered, live: Mapping[str, ApiKey]) -> OpenSession | None:
    """A session for a list; None if its key is no longer valid."""
    key_id, until_ms = _key_id(entry), entry.until_ms or 0
    key = live.get(key_id)
    if key is None and key_id not in (ENVIRONMENT.id, OPERATOR.id):
        return None
    who = _text(entry, "who") or (ENVIRONMENT.name if key_id == ENVIRONMENT.id else OPERATOR.name)
    times = (until_ms - SESSION_MS, until_ms, _text(entry, "origin") or "unknown")
    if key is None:
        return OpenSession(entry.name, key_id, who, *times)
    return OpenSession(entry.name, key_id, key.name, *times, key.permissions, key.tenants)


def _text(entry: Registered, field: str) -> str:
    """A text of an entry; empty if the entry was damaged, or written by a version that did not store this text."""
    stored = decode_shown(entry.body)
    return str(stored.get(field, "")) if isinstance(stored, dict) else ""


def _key_id(entry: Registered) -> str:
    return _key_id_of(_text(entry, "badge"))


def _key_id_of(badge: str) -> str:
    """The id of the key that a badge names."""
    return ENVIRONMENT.id if badge.startswith(f"{ENVIRONMENT.id}-") else badge


def _name(token: str) -> str:
    """The hash under which a token is stored, so that read access to the store is not enough to log in."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
