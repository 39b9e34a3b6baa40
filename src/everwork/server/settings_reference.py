"""Reference texts for all settings, kept next to the code that reads the settings.

The texts are Markdown; links are relative to docs/reference/configuration.md, where they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class SettingText(NamedTuple):
    """What a setting does, and which values are allowed."""

    meaning: str
    allowed: str


_PATH: Final = "path of a PEM file"

REFERENCE: Final[Mapping[str, SettingText]] = {
    "engine": SettingText(
        "URL of the store that holds the jobs: [SQLite](sqlite.md), [PostgreSQL](postgres.md) or [Redis](redis.md).",
        "a URL: `sqlite:///`, `postgresql://`, `redis://`, `rediss://`, `redis+cluster://`",
    ),
    "host": SettingText(
        "Address that the server listens on. `0.0.0.0` and `::` mean all interfaces.", "an address or a host name"
    ),
    "grpc_port": SettingText(
        "Port for gRPC: jobs API, Zeebe gateway and worker stream.", "0 to 65535; 0 picks a free port"
    ),
    "http_port": SettingText("Port for REST and the dashboard.", "0 to 65535; 0 picks a free port"),
    "auth": SettingText(
        "Whether callers need an [API key](../how-to/keys.md).", "`on`, `off`; `off` only on a loopback address"
    ),
    "insecure": SettingText(
        "Whether a server without TLS accepts API keys that other hosts send unencrypted: "
        "[TLS and encryption](#tls-and-encryption).",
        "`on`, `off`",
    ),
    "api_key": SettingText(
        "An API key with the permission `*`, kept in memory and never stored.",
        "12 to 512 printable ASCII characters without spaces; environment variable only",
    ),
    "tls_certificate": SettingText(
        "Server certificate: turns TLS on for both ports. Needs `tls_key`.", f"{_PATH}, together with `tls_key`"
    ),
    "tls_key": SettingText("Private key of the certificate.", f"{_PATH} without a password"),
    "tls_client_ca": SettingText(
        "CA that must have signed client certificates. If set, clients without one are refused.", _PATH
    ),
    "long_poll_seconds": SettingText("Maximum time a poll for jobs waits when none is due, in seconds.", "0 to 300"),
    "pollers_per_type": SettingText(
        "Maximum concurrent polls of one API key for one type; further polls are refused with `too many workers`. "
        "A server holds at most 100,000 waiting polls; when that limit is reached, each key gets an equal share.",
        "1 to 100000",
    ),
    "pollers_per_key": SettingText(
        "Maximum concurrent polls of one API key, for all types together: [budgets](limits.md#budgets).", "1 to 100000"
    ),
    "requests_per_key": SettingText(
        "Maximum number of concurrent requests of one API key; waiting polls are not counted.", "1 to 100000"
    ),
    "searches_per_key": SettingText(
        "Maximum number of concurrent requests of one API key that search variables or errors for a text.", "1 to 1000"
    ),
    "streams_per_key": SettingText(
        "Maximum number of open worker streams of one API key. Each can hold an unfinished message of up to 4 MiB.",
        "1 to 100000",
    ),
    "tenant_factor": SettingText(
        "The budget that the API keys of one tenant share, as a multiple of the budget of one key.", "1 to 1000"
    ),
    "max_types": SettingText(
        "Maximum number of job types in the store. Callers cannot add more; programs that use the store directly can.",
        "1 to 1000000",
    ),
    "max_new_types": SettingText(
        "Maximum number of job types that one API key may add within an hour.", "1 to 1000000"
    ),
    "types_keep_hours": SettingText(
        "Number of hours after the last poll until an unused type is deleted. A type is unused if it has no jobs, "
        "statistics, policy, pause, groups, worker class or schedule.",
        "1 to 87840",
    ),
    "rate_limit": SettingText(
        "Requests per second for each API key that has no rate limit of its own.",
        "0 to 1000000; 0 means no limit",
    ),
    "max_connections": SettingText(
        "Maximum number of open connections to each port. Above it, new ones are refused, but the HTTP port first "
        "closes the connection that has been idle for longest.",
        "10 to 100000",
    ),
    "max_streams": SettingText(
        "Maximum number of open worker streams. Once it is reached, each API key keeps an equal share.", "1 to 100000"
    ),
    "max_bytes_in_flight": SettingText(
        "Maximum total size in bytes of the request bodies and responses over 64 KiB that REST and the dashboard "
        "receive, process and send concurrently. Above it, each API key keeps an equal share; further large requests "
        "are refused with status 503. On the gRPC port, limits of the same size apply to requests in progress, which "
        "wait for room, and to responses and leased jobs that have not been read yet.",
        "1048576 to 1099511627776",
    ),
    "max_bytes_in_flight_per_key": SettingText(
        "The same limits for each API key. Further large requests of the key are refused with status 429; over gRPC, "
        "they wait, and queries are refused while too many responses have not been read.",
        "1048576 to 1099511627776",
    ),
    "trusted_proxies": SettingText(
        "Proxies whose headers are trusted: `X-Forwarded-For` names the caller's address, and `X-Forwarded-Proto` "
        "shows whether the caller uses TLS.",
        "a list of addresses and networks",
    ),
    "masked_variables": SettingText(
        "Names whose values the dashboard hides in variables, headers, results and errors: "
        "[masked values](#masked-values).",
        "a list of names; an empty list masks nothing",
    ),
    "shutdown_seconds": SettingText(
        "Maximum time a stopping server waits for calls in progress, in seconds.", "0 to 600"
    ),
    "offline": SettingText(
        "Spool file of [offline mode](#offline-mode): new jobs are kept there while the engine is unavailable.",
        "path of a file, created if it does not exist",
    ),
    "offline_max_bytes": SettingText(
        "Maximum size of the spool in bytes. When it is full, new jobs are refused.", "1048576 to 1099511627776"
    ),
    "offline_max_age": SettingText("Seconds after which an undelivered job is set aside.", "1 to 1296000"),
    "log_level": SettingText("Lowest level that is logged.", "`debug`, `info`, `warning`, `error`"),
    "log_format": SettingText(
        "Log lines for people, or one JSON object per line ([logs](../how-to/observability.md#logs)).",
        "`console`, `json`",
    ),
    "failed_job_retry_hours": SettingText(
        "Hours after which dead letters are requeued automatically: [defaults for all types](#defaults-for-all-types).",
        "0.001 to 8760, or `off`",
    ),
    "failed_job_retry_rounds": SettingText(
        "Maximum number of automatic requeues per job; 1 if unset.", "1 to 100, or `off`"
    ),
    "breaker_failures": SettingText(
        "Consecutive failures that open the [circuit breaker](../how-to/failures.md#policies) of a type: "
        "[defaults for all types](#defaults-for-all-types).",
        "1 to 1000, or `off`",
    ),
    "breaker_seconds": SettingText(
        "How long the circuit breaker stays open, in seconds; 60 if only `breaker_failures` is set.",
        "1 to 86400, or `off`",
    ),
    "types": SettingText("[Policies of types](#types).", "tables, in the file only"),
}
"""Every setting, in the order of `Settings`."""
