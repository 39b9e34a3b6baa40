"""What the REST door can do, as data: each operation says what it takes, what it needs and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from everwork.core import checks
from everwork.exceptions import EverworkError, InvalidInput, PermissionDenied
from everwork.server.http.framework.body import BODY_BYTES_MAX, read_json
from everwork.server.http.framework.context import AppContext, Caller
from everwork.server.http.framework.fields import Kind, ListOf, Schema
from everwork.server.http.framework.origin import key_of
from everwork.server.http.framework.problems import Refusal, problem_of
from everwork.service.access.principal import Permission, Principal

QUERY_FIELDS_MAX: Final = 1_100
BODY: Final = "body"


class Field(NamedTuple):
    """One value of a query or a body."""

    name: str
    kind: Kind
    about: str
    is_required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a body; one that requires nothing may be left out as a whole, unless it `must_be_sent`."""

    name: str
    fields: tuple[Field, ...]
    example: Mapping[str, Any] = field(default_factory=dict)
    must_be_sent: bool = False

    @property
    def is_required(self) -> bool:
        """Whether there must be a body."""
        return self.must_be_sent or any(one.is_required for one in self.fields)

    def read(self, sent: object) -> dict[str, Any]:
        """The checked values by name; what was not given, or given as null, has its default."""
        if not isinstance(sent, dict):
            raise InvalidInput(BODY, f"must be a JSON object, not {checks.shown(sent)}")
        refuse_unknown(sent, {one.name for one in self.fields})
        return {one.name: _value(one, sent.get(one.name)) for one in self.fields}

    def said(self, sent: object) -> dict[str, Any]:
        """The checked values of what was sent, and of nothing else; null stays null."""
        values = self.read(sent)
        return {name: values[name] for name in sent} if isinstance(sent, dict) else {}


class Answer(NamedTuple):
    """What comes back when all is well."""

    about: str
    schema: Schema | None = None
    media_type: str = "application/json"


class Call(Caller):
    """One request on its way through a handler: who calls, from where, and what was sent."""

    def __init__(self, parts: AppContext, operation: Operation, request: Request, principal: Principal) -> None:
        super().__init__(parts, request, principal)
        self.operation = operation

    @cached_property
    def query(self) -> dict[str, Any]:
        """The checked parameters of the query."""
        return read_query(self.request.scope["query_string"], self.operation.query)

    async def body(self) -> dict[str, Any]:
        """The checked fields of the body."""
        shape = self.operation.body
        return {} if shape is None else shape.read(await self._json(shape))

    async def said(self) -> dict[str, Any]:
        """Those fields of the body that were sent."""
        shape = self.operation.body
        return {} if shape is None else shape.said(await self._json(shape))

    async def _json(self, shape: Shape) -> Any:
        return await read_json(self.request, BODY_BYTES_MAX, is_required=shape.must_be_sent)

    def named(self, name: str) -> str:
        """A name in the path."""
        return checks.name(name, self.request.path_params[name])

    @property
    def wants_little(self) -> bool:
        """Whether the caller has asked for a short answer."""
        return "return=minimal" in self.request.headers.get("prefer", "").replace(" ", "").lower()


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path.

    `permissions`: the key needs one of them; none at all means that no key is needed. `is_unbound`: keys that
    are bound to tenants are refused, because what is asked for concerns all of them. `is_bulk`: the body may be
    a list of the shape as well.
    """

    id: str
    method: str
    path: str
    handler: Handler
    about: str
    answers: Mapping[int, Answer]
    permissions: tuple[Permission, ...] = ()
    is_unbound: bool = False
    query: tuple[Field, ...] = ()
    body: Shape | None = None
    is_bulk: bool = False
    problems: tuple[int, ...] = ()
    tag: str = "jobs"

    def require(self, principal: Principal) -> None:
        """Refuse whoever may not do this, before anything of the request is looked at."""
        if not any(principal.allows(permission) for permission in self.permissions):
            needed = " or ".join(sorted(repr(one.value) for one in {*self.permissions, Permission.ALL}))
            raise PermissionDenied(f"key '{principal.name}' lacks the permission {needed}")
        if self.is_unbound:
            principal.require_unbound()

    async def run(self, parts: AppContext, request: Request) -> Response:
        """Let the caller in, check the request, and do it."""
        principal = NOBODY
        if self.permissions:
            principal = parts.keys.admit(key_of(request.scope))
            self.require(principal)
        call = Call(parts, self, request, principal)
        _ = call.query
        return await self.handler(call)


NOBODY: Final = Principal("nobody", "nobody", frozenset())
"""Whoever calls what needs no key; it allows nothing."""


class PathHandler:
    """Everything that can be done on one path, as an ASGI application."""

    def __init__(self, parts: AppContext, operations: Mapping[str, Operation]) -> None:
        self.operations = operations
        self._parts = parts
        self._allowed = ", ".join(sorted([*operations, *(["HEAD"] if "GET" in operations else [])]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        method = scope["method"]
        operation = self.operations.get("GET" if method == "HEAD" else method)
        try:
            if operation is None:
                raise Refusal(405, "method_not_allowed", f"allowed here: {self._allowed}", {"Allow": self._allowed})
            scope["everwork.operation"] = operation.id
            response = await operation.run(self._parts, Request(scope, receive))
        except (EverworkError, Refusal) as error:
            response = problem_of(error)
        await response(scope, receive, send)


def answer(value: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def read_query(raw: bytes, fields: tuple[Field, ...]) -> dict[str, Any]:
    """The checked parameters by name; unknown and needlessly repeated ones are refused."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise InvalidInput("query", f"cannot be read: {error}") from None
    sent: dict[str, list[str]] = {}
    for name, text in pairs:
        sent.setdefault(name, []).append(text)
    refuse_unknown(sent, {one.name for one in fields})
    return {one.name: _parsed(one, sent.get(one.name)) for one in fields}


def refuse_unknown(sent: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    """Refuse names that mean nothing here, so that no wish is silently ignored."""
    for name in sent:
        if name not in known:
            allowed = f"allowed: {', '.join(sorted(known))}" if known else "nothing is allowed here"
            raise InvalidInput(name[:80], f"is unknown; {allowed}")


def _parsed(one: Field, texts: list[str] | None) -> Any:
    if texts is None:
        return _value(one, None)
    if isinstance(one.kind, ListOf):
        return one.kind.parse_all(one.name, texts)
    if len(texts) > 1:
        raise InvalidInput(one.name, "must be given once")
    return one.kind.parse(one.name, texts[0])


def _value(one: Field, value: object) -> Any:
    if value is None:
        if one.is_required:
            raise InvalidInput(one.name, "must be given")
        return one.default
    return one.kind.read(one.name, value)


class SegmentRoute(BaseRoute):
    """A path like `/types/{type}/pause`. A name is one segment; a slash inside it is sent as %2F."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self.path = path
        self.app = app
        self._segments = path.split("/")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this path, and which names stand in it."""
        found = self._names(scope) if scope["type"] == "http" else None
        return (Match.NONE, {}) if found is None else (Match.FULL, {"path_params": found})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self.app(scope, receive, send)

    def _names(self, scope: Scope) -> dict[str, Any] | None:
        sent = scope["raw_path"].split(b"/")
        if len(sent) != len(self._segments):
            return None
        names: dict[str, Any] = {}
        for expected, raw in zip(self._segments, sent, strict=True):
            segment = _decoded(raw)
            if expected.startswith("{") and segment:
                names[expected[1:-1]] = segment
            elif segment != expected:
                return None
        return names


def _decoded(raw: bytes) -> str | None:
    """A segment as a text; none if it is not one in UTF-8."""
    try:
        return unquote(raw.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        return None
