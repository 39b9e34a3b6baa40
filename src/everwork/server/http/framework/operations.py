"""REST operations as data: parameters, permissions and responses, and the dispatch of requests to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from everwork.core import checks
from everwork.exceptions import EverworkError, InvalidInput, Unauthenticated
from everwork.server.http.framework.body import BODY_BYTES_MAX, TURN, read_json
from everwork.server.http.framework.context import API, PRINCIPAL, AppContext, AuthorisedRequest
from everwork.server.http.framework.fields import FieldType, ListOf, Schema
from everwork.server.http.framework.in_flight import HOLD, Hold
from everwork.server.http.framework.peer import api_key_of, client_address, require_private_key
from everwork.server.http.framework.problems import Refusal, problem_of
from everwork.service.access.budgets import Slices
from everwork.service.access.principal import Permission, Principal
from everwork.service.access.turns import Turns
from everwork.service.verb import UNBOUND, Rule, Verb, rule_of

QUERY_FIELDS_MAX: Final = 1_100
BODY: Final = "body"
T = TypeVar("T")


class Field(NamedTuple):
    """One query parameter or one field of a body."""

    name: str
    type: FieldType
    description: str
    is_required: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields of a body; a body without required fields may be omitted, unless it `must_be_sent`."""

    name: str
    fields: tuple[Field, ...]
    example: Mapping[str, Any] = field(default_factory=dict)
    must_be_sent: bool = False

    @property
    def is_required(self) -> bool:
        """Whether the request must have a body."""
        return self.must_be_sent or any(one.is_required for one in self.fields)

    def read(self, sent: object) -> dict[str, Any]:
        """The validated values by name; absent and null fields have their defaults."""
        if not isinstance(sent, dict):
            raise InvalidInput(BODY, f"must be a JSON object, not {checks.shown(sent)}")
        refuse_unknown(sent, {one.name for one in self.fields})
        return {one.name: _value(one, sent.get(one.name)) for one in self.fields}

    def read_sent(self, sent: object) -> dict[str, Any]:
        """The validated values of the fields that were sent, and no others; null stays null."""
        values = self.read(sent)
        return {name: values[name] for name in sent} if isinstance(sent, dict) else {}


class ResponseSpec(NamedTuple):
    """A successful response in the OpenAPI document."""

    description: str
    schema: Schema | None = None
    media_type: str = "application/json"


class Call(AuthorisedRequest):
    """One REST request: its caller, and its validated parameters and body."""

    def __init__(self, context: AppContext, operation: Operation, request: Request, principal: Principal) -> None:
        super().__init__(context, request, principal)
        self.operation = operation
        self.hold: Hold = request.scope[HOLD]
        self.hold.owner = principal.id

    @cached_property
    def query(self) -> dict[str, Any]:
        """The validated query parameters."""
        return read_query(self.request.scope["query_string"], self.operation.query)

    async def body(self) -> dict[str, Any]:
        """The validated fields of the body, with defaults."""
        shape = self.operation.body
        return {} if shape is None else shape.read(await self._json(shape))

    async def sent_fields(self) -> dict[str, Any]:
        """The validated fields that the body contains."""
        shape = self.operation.body
        return {} if shape is None else shape.read_sent(await self._json(shape))

    async def _json(self, shape: Shape) -> Any:
        return await read_json(self.request, BODY_BYTES_MAX, is_required=shape.must_be_sent)

    def path_param(self, name: str) -> str:
        """A name from the path."""
        return checks.name(name, self.request.path_params[name])

    @cached_property
    def slices(self) -> Slices:
        """The slices of a large call: other callers are served in between."""
        return self.context.service.budgets.slices(self.principal)

    @property
    def prefers_minimal(self) -> bool:
        """Whether the caller sent `Prefer: return=minimal`."""
        return "return=minimal" in self.request.headers.get("prefer", "").replace(" ", "").lower()


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path.

    `verb`: the caller must be allowed to call it; None means that no key is needed.
    `is_bulk`: the body may also be a list of the shape. `response_bytes_max`: the memory that a large response needs.
    `waits`: it waits for a job, so it is not one of the requests in progress of its key.
    """

    id: str
    method: str
    path: str
    handler: Handler
    summary: str
    responses: Mapping[int, ResponseSpec]
    verb: Verb | Rule | None = None
    query: tuple[Field, ...] = ()
    body: Shape | None = None
    is_bulk: bool = False
    problems: tuple[int, ...] = ()
    response_bytes_max: int = 0
    waits: bool = False
    rule: Rule | None = field(init=False)
    """Who may call the operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", None if self.verb is None else rule_of(self.verb))

    @property
    def permissions(self) -> tuple[Permission, ...]:
        """The permissions of which the key needs one; empty if no key is needed."""
        return () if self.rule is None else self.rule.permissions

    @property
    def is_unbound(self) -> bool:
        """Whether keys restricted to tenants are refused."""
        return self.rule is not None and self.rule.tenants is UNBOUND

    async def run(self, context: AppContext, request: Request) -> Response:
        """Authenticate the caller, validate the query, and call the handler."""
        if self.rule is None:
            call = Call(context, self, request, ANONYMOUS)
        else:
            call = Call(context, self, request, caller_of(context, request.scope))
            self.rule.admit(call.principal)
        _ = call.query  # Invalid parameters are refused even where the handler reads none.
        if self.response_bytes_max:
            await call.hold.reserve(self.response_bytes_max, is_response=True)
        if self.rule is None or self.waits:
            return await self.handler(call)
        return await self._in_turn(call)

    async def _in_turn(self, call: Call) -> Response:
        """Call the handler in the caller's turn, which begins once the body has arrived."""
        turn = _RequestTurn(call.context.service.budgets.requests, call.principal)
        if self.body is None:
            await turn.begin()
        else:
            turn.require_room()
            call.request.scope[TURN] = turn
        try:
            return await self.handler(call)
        finally:
            turn.end()


class _RequestTurn:
    """The turn of one request."""

    __slots__ = ("_has_begun", "_principal", "_turns")

    def __init__(self, turns: Turns, principal: Principal) -> None:
        self._turns = turns
        self._principal = principal
        self._has_begun = False

    def require_room(self) -> None:
        self._turns.require_room(self._principal)

    async def begin(self) -> None:
        if not self._has_begun:
            if not self._turns.try_enter(self._principal):
                await self._turns.wait(self._principal)
            self._has_begun = True

    async def give_way(self) -> None:
        await self._turns.give_way(self._principal)

    def end(self) -> None:
        if self._has_begun:
            self._turns.leave(self._principal)


def caller_of(context: AppContext, scope: Scope) -> Principal:
    """The caller checked by the surrounding application or, if it does not check callers, the holder of the API key."""
    if PRINCIPAL not in scope:
        return admitted(context, scope)
    checked: Principal | None = scope[PRINCIPAL]
    return ANONYMOUS if checked is None else checked


def admitted(context: AppContext, scope: Scope) -> Principal:
    """The holder of the API key; failures are logged and throttled, and unencrypted keys are refused."""
    try:
        key = api_key_of(scope)
        if key:
            require_private_key(scope, context.settings)
        return context.keys.admit(key)
    except Unauthenticated as error:
        origin = client_address(scope, context.settings.trusted_proxies)
        raise context.keys.failures.refusal(error, origin, API) from None


ANONYMOUS: Final = Principal("nobody", "nobody", frozenset())
"""The principal of calls that need no key; it has no permissions."""


class PathHandler:
    """The operations on one path by method, as an ASGI application."""

    def __init__(self, context: AppContext, operations: Mapping[str, Operation]) -> None:
        self.operations = operations
        self._context = context
        self._allowed = ", ".join(sorted([*operations, *(["HEAD"] if "GET" in operations else [])]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        method = scope["method"]
        operation = self.operations.get("GET" if method == "HEAD" else method)
        try:
            if operation is None:
                raise Refusal(405, "method_not_allowed", f"use one of {self._allowed}", {"Allow": self._allowed})
            scope["everwork.operation"] = operation.id
            response = await operation.run(self._context, Request(scope, receive))
        except (EverworkError, Refusal) as error:
            hold: Hold = scope[HOLD]
            hold.release()
            await self._context.keys.failures.hold_back(error, hold.owner)
            response = problem_of(error)
        await response(scope, receive, send)


def json_response(value: object, status: int = 200) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(value), status, media_type="application/json")


async def append_list(body: bytearray, values: Sequence[T], slices: Slices, report: Callable[[T], object]) -> None:
    """Append a long list as JSON, in slices; the body is never copied as a whole, so no step takes long."""

    def append(some: Sequence[T]) -> int:
        part = orjson.dumps([report(value) for value in some])
        body.extend(memoryview(part)[1:-1])
        body.extend(b",")
        return len(part)

    body += b"["
    await slices.run(values, append)
    if values:
        body.pop()
    body += b"]"


def long_response(body: bytearray, status: int = 200) -> Response:
    """A response whose body is already JSON."""
    return Response(memoryview(body), status, media_type="application/json")


def read_query(raw: bytes, fields: tuple[Field, ...]) -> dict[str, Any]:
    """The validated query parameters by name; unknown and repeated ones are refused."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise InvalidInput("query", f"cannot be parsed: {error}") from None
    sent: dict[str, list[str]] = {}
    for name, text in pairs:
        sent.setdefault(name, []).append(text)
    refuse_unknown(sent, {one.name for one in fields})
    return {one.name: _parse(one, sent.get(one.name)) for one in fields}


def refuse_unknown(sent: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    """Refuse unknown names, so that nothing is silently ignored."""
    for name in sent:
        if name not in known:
            allowed = f"allowed: {', '.join(sorted(known))}" if known else "no parameters are allowed here"
            raise InvalidInput(name[:80], f"is unknown; {allowed}")


def _parse(field: Field, texts: list[str] | None) -> Any:
    if texts is None:
        return _value(field, None)
    if isinstance(field.type, ListOf):
        return field.type.parse_all(field.name, texts)
    if len(texts) > 1:
        raise InvalidInput(field.name, "must appear only once")
    return field.type.parse(field.name, texts[0])


def _value(field: Field, value: object) -> Any:
    if value is None:
        if field.is_required:
            raise InvalidInput(field.name, "is required")
        return field.default
    return field.type.read(field.name, value)


class SegmentRoute(BaseRoute):
    """A path like `/types/{type}/pause`. A name is one segment; a slash inside it is sent as %2F."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self.path = path
        self.app = app
        self._segments = path.split("/")
        self._fixed = None if "{" in path else path.encode()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request matches this path, and its path parameters."""
        found = self._names(scope) if scope["type"] == "http" else None
        return (Match.NONE, {}) if found is None else (Match.FULL, {"path_params": found})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        await self.app(scope, receive, send)

    def _names(self, scope: Scope) -> dict[str, Any] | None:
        raw_path: bytes = scope["raw_path"]
        if self._fixed is not None and b"%" not in raw_path:
            return {} if raw_path == self._fixed else None
        sent = raw_path.split(b"/")
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
    """A path segment as text; None if it is not UTF-8."""
    try:
        return unquote(raw.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        return None
