"""Every limit that a caller can reach, in one declaration; docs/reference/limits.md is generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from everwork.core import limits
from everwork.server.grpc.message_writer import REPORTS_MAX, UNWRITTEN_BYTES_MAX
from everwork.server.grpc.outcomes import UNJUDGED_BYTES_MAX, UNJUDGED_MAX
from everwork.server.grpc.work_stream import CREDITS_MAX, FEEDS_MAX, LEASES_MAX, OUTCOMES_MAX
from everwork.server.http.framework.body import BODY_BYTES_MAX, BULK_BYTES_MAX, VALUES_MAX
from everwork.server.http.framework.protocol import HEAD_BYTES_MAX, HEADERS_MAX
from everwork.server.http.ui.visit import FORM_BYTES_MAX, LOGIN_BYTES_MAX
from everwork.server.settings import Settings
from everwork.service.access.failures import ANSWERS_PER_SECOND

BUSY: Final = "429, `RESOURCE_EXHAUSTED`, with the time to wait"
INVALID: Final = "422, `INVALID_ARGUMENT`, naming the field"
TOO_LARGE: Final = "413"
_NO_CONNECTION: Final = "HTTP: the connection idle for longest is closed, otherwise 503; gRPC: `UNAVAILABLE`"
_IN_FLIGHT: Final = "each key keeps an equal share, then 503; gRPC requests wait"
_IN_FLIGHT_OF_KEY: Final = "429, `RESOURCE_EXHAUSTED`; gRPC requests wait"
_MIB: Final = 1_048_576


class Ceiling(NamedTuple):
    """One limit: its default, which is that of its setting or fixed, and what happens above it."""

    what: str
    value: str
    setting: str
    above: str


def _set(what: str, setting: str, above: str = BUSY, *, is_bytes: bool = False) -> Ceiling:
    value = getattr(Settings(), setting)
    return Ceiling(what, _bytes(value) if is_bytes else f"{value:,}", setting, above)


def _fixed(what: str, value: int, above: str, *, is_bytes: bool = False) -> Ceiling:
    return Ceiling(what, _bytes(value) if is_bytes else f"{value:,}", "", above)


def _bytes(value: int) -> str:
    return f"{value / _MIB:g} MiB" if value >= _MIB else f"{value / 1_024:g} KiB"


CEILINGS: Final[Mapping[str, tuple[Ceiling, ...]]] = {
    "Budgets": (
        _set("requests of one API key in progress; waiting polls are not counted", "requests_per_key"),
        _set("of these, text searches in variables or errors", "searches_per_key"),
        _set("waiting polls of one API key", "pollers_per_key"),
        _set("of these, for one type", "pollers_per_type"),
        _set("budget shared by the keys of one tenant, as a multiple of one key's", "tenant_factor"),
        _fixed("waiting polls of all keys", limits.POLLERS_TOTAL_MAX, f"each tenant keeps an equal share; then {BUSY}"),
        _set("requests per second of one API key; 0 means no limit", "rate_limit"),
        _fixed("refusals per second of one API key, after the first 100", ANSWERS_PER_SECOND, "later by up to 2 s"),
    ),
    "Connections": (
        _set("open connections to each port", "max_connections", _NO_CONNECTION),
        _fixed("open calls on one gRPC connection", limits.CALLS_PER_CONNECTION, "further calls wait in the client"),
        _fixed("open gRPC calls, as a multiple of `max_connections`", limits.CALLS_TOTAL_FACTOR, BUSY),
        _fixed("gRPC requests being received", limits.RECEIVING_MAX, "further ones wait"),
        _fixed("of these, of one API key", limits.RECEIVING_EACH_MAX, "further ones wait"),
        _fixed("seconds in which a gRPC request must arrive", int(limits.RECEIVE_SECONDS_MAX), "`DEADLINE_EXCEEDED`"),
        _fixed("health watches and reflection streams", limits.WATCHES_MAX, "`RESOURCE_EXHAUSTED`"),
        _fixed("of these, from one address", limits.WATCHES_EACH_MAX, "`RESOURCE_EXHAUSTED`"),
        _set("bytes of large requests and responses in flight", "max_bytes_in_flight", _IN_FLIGHT, is_bytes=True),
        _set("of these, of one API key", "max_bytes_in_flight_per_key", _IN_FLIGHT_OF_KEY, is_bytes=True),
        _fixed("failed authentications per second and address", limits.AUTH_FAILURES_PER_SECOND, "429 instead of 401"),
    ),
    "Requests": (
        _fixed("head of an HTTP request", HEAD_BYTES_MAX, "431, and the connection ends", is_bytes=True),
        _fixed("headers of an HTTP request", HEADERS_MAX, "431, and the connection ends"),
        _fixed("body of a REST request", BODY_BYTES_MAX, TOO_LARGE, is_bytes=True),
        _fixed("body of a bulk create", BULK_BYTES_MAX, TOO_LARGE, is_bytes=True),
        _fixed("values in one body", VALUES_MAX, INVALID),
        _fixed("login form", LOGIN_BYTES_MAX, TOO_LARGE, is_bytes=True),
        _fixed("other forms of the dashboard", FORM_BYTES_MAX, TOO_LARGE, is_bytes=True),
        _fixed("gRPC message", limits.MESSAGE_BYTES_MAX, "`RESOURCE_EXHAUSTED`", is_bytes=True),
        _fixed("fields, list items and map entries of a gRPC message", limits.MESSAGE_FIELDS_MAX, INVALID),
        _fixed("gRPC request without an API key", limits.GUEST_BYTES_MAX, "`INVALID_ARGUMENT`", is_bytes=True),
        _fixed("jobs in one create", limits.CREATE_BATCH_MAX, INVALID),
        _fixed("outcomes in one settle", limits.SETTLE_BATCH_MAX, INVALID),
        _fixed("events of one outcome", limits.EVENTS_MAX, INVALID),
        _fixed("events of all outcomes in one gRPC message", limits.SETTLE_EVENTS_MAX, "`INVALID_ARGUMENT`"),
        _fixed(
            "variables of jobs that the failures in one settle change",
            limits.MERGED_BYTES_MAX,
            "`INVALID_ARGUMENT`",
            is_bytes=True,
        ),
        _fixed("jobs in one activation over gRPC", limits.ACTIVATE_MAX, "fewer jobs"),
        _fixed("variable names in one activation over gRPC", limits.FETCHED_MAX, "`INVALID_ARGUMENT`"),
        _fixed("variables in one activation", limits.ACTIVATE_BYTES_MAX, "fewer jobs, at least one", is_bytes=True),
        _fixed("jobs leased in one step, for all callers", limits.LEASE_STEP_MAX, "the others in the next step"),
        _fixed("jobs on one page", limits.LIST_LIMIT_MAX, INVALID),
        _fixed("size of one page", limits.PAGE_BYTES_MAX, "a shorter page, with a cursor", is_bytes=True),
        _fixed("variables read in one step of a search", limits.SEARCH_BYTES_MAX, "a further step", is_bytes=True),
    ),
    "Worker streams": (
        _set("open streams of one API key", "streams_per_key"),
        _set("open streams of all keys", "max_streams", f"each key keeps an equal share; then {BUSY}"),
        _fixed("types in one stream", FEEDS_MAX, "the stream ends with `INVALID_ARGUMENT`"),
        _fixed("grants in one message", FEEDS_MAX, "the stream ends with `INVALID_ARGUMENT`"),
        _fixed("attempts named in one message", LEASES_MAX, "the stream ends with `INVALID_ARGUMENT`"),
        _fixed("variables of a stream's unread jobs", UNWRITTEN_BYTES_MAX, "no more are leased for it", is_bytes=True),
        _fixed("lost leases that a stream's worker has not read", REPORTS_MAX, "no more of its messages are read"),
        _fixed("credits for one type", CREDITS_MAX, "the stream ends with `INVALID_ARGUMENT`"),
        _fixed("outcomes in one message", OUTCOMES_MAX, "the stream ends with `INVALID_ARGUMENT`"),
        _fixed("outcomes of one stream that are not settled yet", UNJUDGED_MAX, "no more are read"),
        _fixed("memory of these outcomes", UNJUDGED_BYTES_MAX, "no more are read", is_bytes=True),
    ),
    "Names": (
        _set("job types in the store", "max_types"),
        _set("job types that one API key may add within an hour", "max_new_types"),
        _set("hours that an unused type is kept", "types_keep_hours", "it is deleted"),
        _fixed(
            "processes in offline mode that the API keys of one tenant may add within an hour",
            limits.NEW_PRODUCERS_MAX,
            "429",
        ),
        _fixed(
            "processes in offline mode whose last create is remembered", limits.PRODUCERS_MAX, "the oldest is forgotten"
        ),
        _fixed(
            "pairs of worker and type in the statistics of one hour",
            limits.WORKER_ROWS_MAX,
            "further workers are counted together as `(other)`",
        ),
        _fixed(
            "addresses whose failed authentications are counted",
            limits.AUTH_FAILURE_ADDRESSES_MAX,
            "the oldest is forgotten",
        ),
    ),
    "Jobs": (
        _fixed("characters in a type, tenant or other name", limits.NAME_CHARS_MAX, INVALID),
        _fixed("variables or result of one job", limits.PAYLOAD_BYTES_MAX, INVALID, is_bytes=True),
        _fixed("headers of one job", limits.HEADERS_BYTES_MAX, INVALID, is_bytes=True),
        _fixed("nesting depth of JSON", limits.JSON_DEPTH_MAX, INVALID),
        _fixed("attempts of one job", limits.ATTEMPTS_MAX, INVALID),
        _fixed("history entries stored for one job", limits.HISTORY_ENTRIES_MAX, "the oldest are dropped"),
        _fixed("characters stored of an error", limits.ERROR_CHARS_MAX, "the rest is dropped"),
    ),
    "Dashboard and keys": (
        _fixed("live pages of one server", limits.LIVE_PAGES_MAX, "the page says so and is not updated"),
        _fixed("live pages of one API key", limits.LIVE_PAGES_KEY_MAX, "the page says so and is not updated"),
        _fixed("live pages of one session", limits.LIVE_PAGES_EACH_MAX, "the page says so and is not updated"),
        _fixed("sessions of one API key", limits.SESSIONS_PER_KEY_MAX, "the oldest one ends"),
        _fixed("tenants of one API key", limits.API_KEYS_TENANTS_MAX, INVALID),
        _fixed(
            "days that an expired or revoked API key is kept",
            limits.API_KEY_KEEP_MS // (24 * limits.HOUR_MS),
            "it is deleted",
        ),
    ),
}
"""The limits, by heading."""
