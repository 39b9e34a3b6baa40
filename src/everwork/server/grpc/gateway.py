"""The entry point of every gRPC call: authenticates, authorizes and parses it, and maps errors to statuses.

Requests arrive as bytes and are parsed here, so that malformed ones get INVALID_ARGUMENT and never UNKNOWN.
There are no interceptors: they would double the cost per call. Every call is registered as client-streaming, even if
it has only one request: such a handler is called before the request arrives, so a refused caller cannot send one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from everwork.core.limits import CALLS_TOTAL_FACTOR
from everwork.exceptions import EverworkError, InvalidInput, TooManyRequests, Unauthenticated
from everwork.logs import Occasional, get_logger
from everwork.server.addresses import caller_address, is_https_proxy, refuses_clear_keys, require_private
from everwork.server.errors import public_text, wire
from everwork.server.grpc.fields import LARGE_BYTES, require_few_fields
from everwork.server.grpc.intake import COUNTED_BYTES, EOF, HeldBytes, OpenCalls, Receiving, request_bytes
from everwork.server.metrics import Metrics
from everwork.server.settings import Settings
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import Permission
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import Caller, Rule, Verb, rule_of

DETAILS_CHARS_MAX: Final = 1_000
DETAILS_BYTES_MAX: Final = 4_096
"""Details are sent in a header, percent-encoded, and clients refuse headers of more than 8 KiB in total."""
CODE: Final = "everwork-code"
"""The trailing metadata key for the error's stable code, because several errors share one status."""
INTERNAL_ERROR: Final = "internal error; see the server log"

log = get_logger("everwork")

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Methods: TypeAlias = Mapping[str, Handler]
"""The handlers of one or more services, by full name: `/package.Service/Method`."""
Request = TypeVar("Request", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rpc:
    """One gRPC call, open to callers that may call its verb; `api` is its label in the metrics."""

    api: str
    service: str
    name: str
    verb: Verb | Rule
    waits: bool = False
    """Whether the call waits for a job: then it does not count as a request in progress."""
    rule: Rule = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", rule_of(self.verb))

    @property
    def path(self) -> str:
        """The full name of the call."""
        return f"/{self.service}/{self.name}"


class Gateway:
    """Shared by all gRPC calls."""

    def __init__(self, service: JobService, keys: KeyRing, metrics: Metrics, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._refuses_clear_keys = refuses_clear_keys(self._settings)
        self.service = service
        self.keys = keys
        self.metrics = metrics
        self.stopping = asyncio.Event()
        self.notices = Occasional(log)
        self.calls = OpenCalls(CALLS_TOTAL_FACTOR * self._settings.max_connections, self.notices)
        limits = self._settings.max_bytes_in_flight, self._settings.max_bytes_in_flight_per_key
        self.receiving = Receiving(self.notices, requests=HeldBytes(*limits))
        self.undelivered = HeldBytes(*limits)
        """The responses and leased jobs that clients have not read yet."""

    def unary(
        self,
        rpc: Rpc,
        request_type: type[Request],
        handle: Callable[[Jobs, Request], Awaitable[Message]],
        *,
        reworded: Callable[[Exception], Exception] = lambda error: error,
    ) -> Handler:
        """A call with one request and one response; it runs in its caller's turn, unless it waits for a job.

        `reworded` returns the error to report in place of the one that was raised.
        """
        turns = None if rpc.waits else self.service.budgets.requests
        is_query = rpc.rule.permissions == (Permission.JOBS_READ,)
        weigh = _weigher(request_type)

        async def call(_requests: object, context: Context) -> bytes:
            owner, raw, answer, weight = "", b"", b"", 0
            response: Message | None = None
            try:
                jobs = self.admit(rpc, context)
                principal = jobs.principal
                owner = principal.id
                task = self._enter(owner)
                raw, weight = await self.receiving.receive(owner, context, weigh, task)
                if weight:
                    await self._require_few_fields(jobs, request_type, raw)
                if turns is None:
                    response = await handle(jobs, parsed(request_type, raw))
                else:
                    if not turns.try_enter(principal):
                        await turns.wait(principal)
                    try:
                        response = await handle(jobs, parsed(request_type, raw))
                    finally:
                        turns.leave(principal)
                answer = response.SerializeToString()
                if len(answer) > COUNTED_BYTES:
                    self._hold_response(owner, len(answer), is_refusable=is_query)
                self.metrics.called(rpc.api, rpc.name, "OK")
                return answer
            except (grpc.aio.BaseError, asyncio.CancelledError):
                self.metrics.called(rpc.api, rpc.name, "CANCELLED")
                raise
            except Exception as error:  # noqa: BLE001 - the last resort
                raw, response, answer = b"", None, b""  # See `forget_frames`.
                await self.refuse(rpc, context, reworded(error), owner)
            finally:
                if weight:
                    self.receiving.requests.release(owner, weight)

        return grpc.stream_unary_rpc_method_handler(call)

    def server_stream(
        self, rpc: Rpc, request_type: type[Request], handle: Callable[[Jobs, Request, Context], Awaitable[None]]
    ) -> Handler:
        """A call with one request, to which `handle` writes any number of responses, as bytes."""
        weigh = _weigher(request_type)

        async def call(_requests: object, context: Context) -> None:
            async def respond(jobs: Jobs) -> None:
                owner = jobs.principal.id
                raw, weight = await self.receiving.receive(owner, context, weigh)
                try:
                    if weight:
                        await self._require_few_fields(jobs, request_type, raw)
                    await handle(jobs, parsed(request_type, raw), context)
                finally:
                    if weight:
                        self.receiving.requests.release(owner, weight)

            await self._serve(rpc, context, respond)

        return grpc.stream_stream_rpc_method_handler(call)

    def bidirectional(self, rpc: Rpc, handle: Callable[[Jobs, Context], Awaitable[None]]) -> Handler:
        """A call in which both sides send messages: `handle` reads and writes bytes; see `parsed`."""

        async def call(_requests: object, context: Context) -> None:
            async def converse(jobs: Jobs) -> None:
                await handle(jobs, context)

            await self._serve(rpc, context, converse)

        return grpc.stream_stream_rpc_method_handler(call)

    def admit(self, rpc: Rpc, context: Context) -> Jobs:
        """Return the service for the caller if its key is valid, is within its rate limit, and allows the call."""
        # Read the peer now: gRPC forgets it once the call's deadline has passed.
        metadata, peer = context.invocation_metadata() or (), context.peer()
        origin = partial(_origin, metadata, peer, self._settings.trusted_proxies)
        try:
            key = key_in(metadata)
            if key and self._refuses_clear_keys:
                _require_private_key(metadata, peer, self._settings)
            principal = self.keys.admit(key)
        except Unauthenticated as error:
            raise self.keys.failures.refusal(error, origin(), "grpc") from None
        rpc.rule.admit(principal)
        return Jobs(self.service, Caller(principal, origin))

    def require_live(self, jobs: Jobs) -> None:
        """Refuse a caller whose key was revoked or expired while it waited."""
        if not self.keys.is_live(jobs.principal):
            raise Unauthenticated("the API key is no longer valid")

    def while_live(self, jobs: Jobs, messages: Iterable[T]) -> Iterator[T]:
        """The messages, unless the key became invalid before the first one."""
        self.require_live(jobs)
        yield from messages

    async def refuse(self, rpc: Rpc, context: Context, error: Exception, owner: str) -> NoReturn:
        """End the call with the error's status; see `everwork.server.errors`. `owner`: the id of the API key."""
        trailing: tuple[tuple[str, str], ...] = ()
        if isinstance(error, EverworkError):
            code, details = wire(error).grpc, public_text(error)
            trailing = ((CODE, wire(error).code),)
        else:
            code, details = grpc.StatusCode.INTERNAL, INTERNAL_ERROR
            log.error("internal error in a call", call=rpc.path, exc_info=error)
        if isinstance(error, TooManyRequests):
            hint = str(error.retry_after_ms)
            trailing = (*trailing, ("retry-after-ms", hint), ("grpc-retry-pushback-ms", hint))
        self.metrics.called(rpc.api, rpc.name, code.name)
        forget_frames(error)
        await self.keys.failures.hold_back(error, owner)
        await abort(context, code, cut_to_fit(details), trailing)

    async def _serve(self, rpc: Rpc, context: Context, serve: Callable[[Jobs], Awaitable[None]]) -> None:
        owner = ""
        try:
            jobs = self.admit(rpc, context)
            owner = jobs.principal.id
            self._enter(owner)
            await serve(jobs)
            self.metrics.called(rpc.api, rpc.name, "OK")
        except (grpc.aio.BaseError, asyncio.CancelledError):
            self.metrics.called(rpc.api, rpc.name, "CANCELLED")
            raise
        except Exception as error:  # noqa: BLE001 - the last resort
            await self.refuse(rpc, context, error, owner)

    def _enter(self, owner: str) -> asyncio.Task[Any]:
        """Count a call until it ends, which is later than its handler: the client may not read the response."""
        self.calls.enter(owner)
        return _at_end(partial(self.calls.leave, owner))

    async def _require_few_fields(self, jobs: Jobs, request_type: type[Message], raw: bytes) -> None:
        if len(raw) > LARGE_BYTES:
            give_way = self.service.budgets.slices(jobs.principal).give_way
            await require_few_fields(request_type.DESCRIPTOR, raw, give_way)

    def _hold_response(self, owner: str, size: int, *, is_refusable: bool) -> None:
        """Count a response until the client has read it; above the limits, nothing more can be queried."""
        if is_refusable:
            self.undelivered.hold(owner, size)
        else:
            self.undelivered.add(owner, size)
        _at_end(lambda _: self.undelivered.release(owner, size))


class Router(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # Generic in its stubs only.
    """Finds the handler of a call with a single lookup across all services."""

    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """The handler; None becomes UNIMPLEMENTED."""
        return self._methods.get(handler_call_details.method)


def _at_end(callback: Callable[[asyncio.Task[Any]], None]) -> asyncio.Task[Any]:
    """Run a callback when the current call ends; returns the call's task.

    With `context.add_done_callback`, a reference cycle would keep the call in memory until garbage collection.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - each call is a task
    task.add_done_callback(callback)
    return task


async def abort(
    context: Context, code: grpc.StatusCode, details: str, trailing: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    """End the current call with a status, and keep nothing of it."""
    try:
        await context.abort(code, details, trailing)
    except grpc.aio.AbortError as ended:
        _at_end(partial(forget_frames, ended))
        raise


def forget_frames(error: BaseException | None, _task: object = None) -> None:
    """Drop the tracebacks of an error that gRPC keeps until garbage collection: their frames keep the whole call."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _weigher(request_type: type[Message]) -> Callable[[bytes], int]:
    """How much memory a request counts as while it is in progress; 0 if it is small."""
    has_items = any(one.message_type is not None for one in request_type.DESCRIPTOR.fields)

    def weigh(raw: bytes) -> int:
        if raw is EOF or len(raw) <= COUNTED_BYTES:
            return 0
        return request_bytes(len(raw), has_items=has_items)

    return weigh


def parsed(request_type: type[Request], raw: bytes) -> Request:
    """Parse a message; a call without a message has no bytes."""
    try:
        return request_type.FromString(raw)
    except (DecodeError, TypeError):
        name = request_type.DESCRIPTOR.full_name
        raise InvalidInput("request", f"must be a protobuf message of type {name}") from None


def cut_to_fit(details: str) -> str:
    """Truncate details to the length that clients accept: encoding makes non-Latin scripts several times longer."""
    kept = details[:DETAILS_CHARS_MAX]
    size = 0
    for index, sign in enumerate(kept):
        size += 1 if " " <= sign <= "~" and sign != "%" else 3 * len(sign.encode(errors="replace"))
        if size > DETAILS_BYTES_MAX:
            return kept[:index]
    return kept


def peer_address(peer: str) -> str:
    """The address in gRPC's name for a connection: `ipv4:10.0.0.7:5123`, `ipv6:%5B::1%5D:5123`."""
    scheme, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if scheme in ("ipv4", "ipv6") else address or scheme


def _origin(metadata: Any, peer: str, trusted: Sequence[str]) -> str:
    """The address of a caller; only trusted proxies can override it."""
    return caller_address(peer_address(peer), _values(metadata, "x-forwarded-for"), trusted)


def _require_private_key(metadata: Any, peer: str, settings: Settings) -> None:
    """Refuse a key that was sent unencrypted from another host."""
    trusted = settings.trusted_proxies
    address = _origin(metadata, peer, trusted) if peer.startswith("ipv") else None
    is_tls = is_https_proxy(peer_address(peer), _values(metadata, "x-forwarded-proto"), trusted)
    require_private(address, is_tls=is_tls)


def _values(metadata: Any, header: str) -> list[str]:
    return [value for name, value in metadata if name == header]


def key_in(metadata: Any) -> str | None:
    """The API key of a call; more than one is refused."""
    found: list[str] = []
    for name, value in metadata:
        if name == "x-api-key":
            found.append(value)
        elif name == "authorization" and value[:7].lower() == "bearer ":
            found.append(value[7:].strip())
    if len(found) > 1:
        raise Unauthenticated("more than one API key: send one, in the x-api-key metadata")
    return found[0] if found else None
