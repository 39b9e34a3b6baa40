"""Dashboard sessions: started with an API key or a one-time link, kept as hashes in the registry."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Final

import orjson

from everwork.core.limits import LOGIN_LINK_MS, SESSION_MS
from everwork.engines.contract import Engine
from everwork.exceptions import Unauthenticated
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Permission, Principal

SESSION: Final = "session"
LINK: Final = "login-link"
TOKEN_BYTES: Final = 32
TOKEN_CHARS_MAX: Final = 100
OPERATOR: Final = Principal("login-link", "login link", frozenset([Permission.ALL]))
"""The principal of a user who logged in with a link printed on the server's own terminal."""


@dataclass(frozen=True, slots=True)
class Session:
    """A logged-in user. Only the browser knows the `token`; `badge` names the key (`KeyRing.badge`)."""

    token: str
    badge: str

    @property
    def csrf(self) -> str:
        """The CSRF token that every form of the session must send: other sites cannot know it."""
        return hmac.new(self.token.encode(), b"everwork form", sha256).hexdigest()


class Sessions:
    """The sessions of one store, valid on all of its servers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin(self, badge: str) -> Session:
        """Start a session for the holder of a key; it ends when it expires or the key becomes invalid."""
        session = Session(secrets.token_urlsafe(TOKEN_BYTES), badge)
        body = orjson.dumps(asdict(replace(session, token=""))).decode()
        await self._engine.register(SESSION, _name(session.token), body, SESSION_MS)
        return session

    async def find(self, token: str) -> Session | None:
        """The session of a token; None if it does not exist or has expired."""
        if not token or len(token) > TOKEN_CHARS_MAX:
            return None
        name = _name(token)
        found = await self._engine.last_registered(SESSION, 1, f"{name}~")
        if not found or found[0].name != name:
            return None
        return Session(token, str(orjson.loads(found[0].body)["badge"]))

    async def end(self, session: Session) -> None:
        """Log out."""
        await self._engine.unregister(SESSION, _name(session.token))

    async def new_link(self) -> str:
        """Create a short-lived login link and return its token; the first user to follow it becomes an operator."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        await self._engine.register(LINK, _name(token), "{}", LOGIN_LINK_MS)
        return token

    async def follow(self, token: str) -> Session:
        """Start a session with the token of a login link; each link works only once."""
        if len(token) > TOKEN_CHARS_MAX or not await self._engine.unregister(LINK, _name(token)):
            raise Unauthenticated("this link was already used or has expired; create a new one with: everwork login")
        return await self.begin(OPERATOR.id)


def holder_of(session: Session, keys: KeyRing) -> Principal | None:
    """The principal of a session; None if the key that started it is no longer valid."""
    return OPERATOR if session.badge == OPERATOR.id else keys.holder(session.badge)


def _name(token: str) -> str:
    """The hash under which a token is stored, so that read access to the store is not enough to log in."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
