"""Every limit of the system, in one place. Units are in the names."""

from __future__ import annotations

from typing import Final

DEFAULT_TENANT: Final = "<default>"
DEFAULT_GROUP: Final = ""

NAME_CHARS_MAX: Final = 255
TITLE_CHARS_MAX: Final = 300
ERROR_CHARS_MAX: Final = 8_192
TRACEBACK_CHARS_MAX: Final = 8_192
"""How much of a traceback is kept with its attempt: the first line and the end."""
KEY_MAX: Final = 2**63 - 1
PRODUCER_CHARS_MAX: Final = 64
"""The maximum length of a remote producer's name."""
STAMP_NUMBER_MAX: Final = 2**53 - 1
"""The largest number that every store compares exactly."""

PAYLOAD_BYTES_MAX: Final = 1_048_576
HEADERS_BYTES_MAX: Final = 65_536
JSON_DEPTH_MAX: Final = 64

PRIORITY_MIN: Final = -512
PRIORITY_MAX: Final = 511

ATTEMPTS_DEFAULT: Final = 5
ATTEMPTS_MAX: Final = 100
OUTAGE_RELEASES_MAX: Final = 20
"""How often a job is released because a store was unavailable, before such an attempt counts like any other."""
OUTAGE_PAUSE_SECONDS_MAX: Final = 30.0
ATTEMPT_MAX: Final = 2**31 - 1
"""Attempt numbers grow with every activation, even uncounted ones; stores keep them in 32 bits."""

LEASE_MS_DEFAULT: Final = 30_000
LEASE_MS_MAX: Final = 86_400_000
PARK_MS: Final = 1_250
"""How long a parked demand is valid: a waiting worker renews it with every poll, at least once per second."""
HANDED_BYTES_MAX: Final = 6_000
"""The largest job that a create hands over, in bytes of its variables, headers, correlation id and extra values; Redis
counts these as they are stored. PostgreSQL limits notifications to 8,000 bytes."""

DELAY_MS_MAX: Final = 10 * 366 * 86_400_000
INSTANT_MS_MAX: Final = 253_402_300_799_999  # The last millisecond of the year 9999.

CREATE_BATCH_MAX: Final = 10_000
CREATE_SHARED_MAX: Final = 1_000
"""How many jobs may share a commit if several callers create them: a larger commit would only make others wait."""
SETTLE_BATCH_MAX: Final = 10_000
ACTIVATE_MAX: Final = 1_000
ACTIVATE_BYTES_MAX: Final = 32 * 1_048_576
"""A remote caller's activation ends with the job whose variables make it exceed this size, whatever its limit."""
LEASE_STEP_MAX: Final = 256
"""How many jobs one step leases for remote callers, even if the jobs so far were small: the next ones may be as large
as allowed."""
POLLERS_MAX: Final = 1_000
"""How many polls of one API key may wait for one type, unless a setting changes it."""
POLLERS_TOTAL_MAX: Final = 100_000
"""How many polls of all keys may wait in one server, for all types together."""
POLLERS_PER_KEY: Final = 5_000
"""How many polls of one API key may wait for all types together, unless a setting changes it."""
REQUESTS_PER_KEY: Final = 1_000
"""How many requests of one API key may be in progress, unless a setting changes it; waiting polls are not counted."""
SEARCHES_PER_KEY: Final = 16
"""How many of these requests may search variables or errors for a text, unless a setting changes it."""
STREAMS_PER_KEY: Final = 250
"""How many worker streams of one API key may be open, unless a setting changes it; each can hold an unfinished message
of the maximum size."""
STREAMS_MAX: Final = 1_000
"""How many worker streams of all keys may be open, unless a setting changes it."""
TENANT_FACTOR: Final = 4
"""The API keys of one tenant together may use this many times the budget of one key, unless a setting changes it."""
TYPES_MAX: Final = 10_000
"""How many job types a store may have before callers cannot add more, unless a setting changes it."""
NEW_TYPES_MAX: Final = 1_000
"""How many job types one API key may add in an hour, unless a setting changes it."""
TYPE_KEEP_MS: Final = 24 * 3_600_000
"""How long an unused type is kept after its last poll, unless a setting changes it."""
WORKERS_SHOWN_MAX: Final = 100
"""How many workers are listed by name in statistics: those that finished the most jobs."""
LIST_LIMIT_DEFAULT: Final = 50
LIST_LIMIT_MAX: Final = 1_000
LIST_SCAN_MAX: Final = 20_000
FILTER_STATES_MAX: Final = 20
"""How many states a filter may name, duplicates included."""
PAGE_BYTES_MAX: Final = 16 * 1_048_576
"""A page ends with the job that makes it exceed this size, whatever its limit."""
SEARCH_BYTES_MAX: Final = 32 * 1_048_576
"""How many bytes of variables one call searches for a text, not counting the step that exceeds it."""

ASKED_EVERY_MS: Final = 10_000
"""The resolution at which an engine stores when a type was last requested."""

OLDEST_SCAN_MAX: Final = 1_000
"""How many lanes and priorities of a type are searched for the longest-waiting job."""
PROMOTE_MAX: Final = 1_000
SWEEP_STEP_MAX: Final = 1_000
HISTORY_ENTRIES_MAX: Final = 200

COMPLETED_KEEP_MS: Final = 7 * 86_400_000
FAILED_KEEP_MS: Final = 90 * 86_400_000
STATISTICS_KEEP_HOURS: Final = 30 * 24
WORKER_ROWS_MAX: Final = 2_000
"""How many pairs of worker and type are counted separately in one hour; further workers are counted together."""

HOUR_MS: Final = 3_600_000

PRODUCER_KEEP_MS: Final = 30 * 86_400_000
"""How long a store remembers the last create of a producer: longer than any spool keeps jobs for it."""
PRODUCERS_MAX: Final = 100_000
"""For how many producers a store remembers the last create: those that were seen most recently."""
NEW_PRODUCERS_MAX: Final = 10_000
"""How many producers the API keys of one tenant may add in an hour; each process in offline mode is a producer."""

BREAKER_FAILURES_MAX: Final = 1_000
BREAKER_SECONDS_MAX: Final = 86_400.0
ERROR_RULES_MAX: Final = 100
ERROR_RULE_CHARS_MAX: Final = 500
FAILED_RETRY_HOURS_MAX: Final = 365 * 24.0
FAILED_RETRY_ROUNDS_MAX: Final = 100
KEEP_HOURS_MAX: Final = 10 * 366 * 24.0
RATE_JOBS_MAX: Final = 1_000_000
RATE_SECONDS_MAX: Final = 86_400.0
RUNNING_MAX: Final = 1_000_000

FETCHED_MAX: Final = 1_000
"""How many variables an activation over gRPC may name; the names are kept while it waits."""
CONCURRENCY_MAX: Final = 10_000
PROCESSES_MAX: Final = 1_000
"""How many processes one program may run."""
TICK_JOBS_DEFAULT: Final = 10
TICK_JOBS_MAX: Final = 1_000_000
EXECUTION_SECONDS_DEFAULT: Final = 180.0
SOURCES_MAX: Final = 100
EVENTS_MAX: Final = 10_000
"""How many events one attempt may emit; they are created in the transaction of its completion."""
SETTLE_EVENTS_MAX: Final = 20_000
"""How many events the outcomes in one message or call may have in total."""
MERGED_BYTES_MAX: Final = 32 * 1_048_576
"""How many bytes the variables of the failures in one call may have, once merged into those of their jobs."""
CATCHUP_POINTS_MAX: Final = 10_000
"""How many missed scheduled times a trigger catches up on: the latest ones."""
FIRES_STEP_MAX: Final = 100

CALLS_PER_CONNECTION: Final = 2_000
"""How many gRPC calls one connection may have open; clients queue further ones, so it is above `POLLERS_MAX`."""
CALLS_TOTAL_FACTOR: Final = 10
"""How many open calls a gRPC port accepts, as a multiple of the maximum number of connections."""
MESSAGE_BYTES_MAX: Final = 4 * 1_048_576
"""The largest gRPC message that the server accepts."""
MESSAGE_FIELDS_MAX: Final = 100_000
"""How many fields, list items and map entries a gRPC message may have, including those of nested messages that can
contain messages themselves: small ones need far more memory than their bytes."""
RECEIVING_MAX: Final = 64
"""How many gRPC requests are received at the same time; each may be unfinished, and of the maximum size."""
RECEIVING_EACH_MAX: Final = 16
"""How many of these may belong to one API key; only one while half of the places are taken."""
RECEIVE_SECONDS_MAX: Final = 20.0
"""How long a gRPC request may take to arrive."""
GUEST_BYTES_MAX: Final = 4_096
"""The largest gRPC request without an API key: the name of a service or file, which is kept while the call is open."""
WATCHES_MAX: Final = 1_000
"""How many health watches and reflection streams, which need no key, may be open on one server."""
WATCHES_EACH_MAX: Final = 500
"""How many of these one address may open."""

API_KEY_CHARS_MAX: Final = 512
API_KEY_CHARS_MIN: Final = 12
API_KEYS_TENANTS_MAX: Final = 1_000
RATE_PER_SECOND_MAX: Final = 1_000_000
RATE_BUCKETS_MAX: Final = 10_000
API_KEY_KEEP_MS: Final = 90 * 86_400_000
"""How long an API key is listed after it has expired or was revoked."""
AUDIT_KEEP_MS: Final = 90 * 86_400_000
AUDIT_DETAIL_BYTES_MAX: Final = 16_384

SESSION_MS: Final = 12 * 3_600_000
LOGIN_LINK_MS: Final = 3_600_000
AUTH_FAILURES_BURST: Final = 100
AUTH_FAILURES_PER_SECOND: Final = 10
"""How often one address can fail to authenticate, in a burst and in the long run, before it gets status 429."""
AUTH_FAILURE_ADDRESSES_MAX: Final = 10_000
"""For how many addresses failures are counted."""
AUTH_FAILURE_LINES_PER_MINUTE: Final = 60
"""How many log lines per minute report failures of all addresses together."""
SESSIONS_PER_KEY_MAX: Final = 100
"""How many dashboard sessions one API key, or all login links together, can have; a new login then ends the oldest."""
LIVE_PAGES_MAX: Final = 200
"""How many dashboard pages one server keeps up to date concurrently."""
LIVE_PAGES_EACH_MAX: Final = 20
"""How many of these pages one session may have open."""
LIVE_PAGES_KEY_MAX: Final = 100
"""How many of these pages all sessions of one API key together may have open."""

CONNECTIONS_DEFAULT: Final = 1_000
"""How many connections each port of a server may have open."""
CONNECTIONS_MIN: Final = 10
CONNECTIONS_MAX: Final = 100_000
IN_FLIGHT_BYTES_DEFAULT: Final = 256 * 1_048_576
"""How many bytes of request bodies and responses a server receives, processes and sends concurrently."""
IN_FLIGHT_BYTES_EACH_DEFAULT: Final = 64 * 1_048_576
"""How many of these bytes may belong to one API key."""
IN_FLIGHT_BYTES_MIN: Final = 1_048_576
IN_FLIGHT_BYTES_MAX: Final = 2**40
