"""Driver errors, translated to Everwork's own: one line that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import asyncpg

from everwork.engines.postgres.store_url import StoreUrl
from everwork.exceptions import BadConfiguration, EngineBusy, EngineError, EngineUnavailable

REPEATABLE = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
"""The server rolled everything back, so the transaction can be repeated."""

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    asyncio.TimeoutError,
    EOFError,
)


def translated(url: StoreUrl, error: BaseException) -> EngineError:
    """The error that a user sees."""
    values = {"where": url.shown, "line": _line(error), "schema": url.schema}
    for kinds, make, text in _TRANSLATIONS:
        if isinstance(error, kinds):
            return make(text.format(**values))
    return EngineUnavailable("cannot reach {where}: {line}; is the server running?".format(**values))


_TRANSLATIONS: Final[Sequence[tuple[tuple[type[BaseException], ...], type[EngineError], str]]] = (
    (
        (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError),
        BadConfiguration,
        "{where} refuses the user: {line}; check user and password (URL or PGPASSWORD)",
    ),
    (
        (asyncpg.InvalidCatalogNameError,),
        BadConfiguration,
        "{where}: {line}; create it (createdb) or correct the URL",
    ),
    (
        (asyncpg.InsufficientPrivilegeError,),
        BadConfiguration,
        (
            "{where}: {line}; have the owner run `everwork migrate`, and grant this user the privileges that"
            " docs/reference/postgres.md lists for schema {schema}"
        ),
    ),
    (
        (asyncpg.ReadOnlySQLTransactionError,),
        EngineUnavailable,
        "{where} is read-only; use the primary server, not a replica",
    ),
    (
        (asyncpg.TooManyConnectionsError,),
        EngineBusy,
        "{where}: {line}; raise max_connections, or set a smaller ?pool=",
    ),
    (
        (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError),
        EngineUnavailable,
        "{where} holds no jobs in schema {schema!r}; run `everwork migrate`",
    ),
    (
        (asyncpg.DiskFullError, asyncpg.OutOfMemoryError),
        EngineUnavailable,
        "{where}: {line}; free space on the server, nothing was written",
    ),
    (
        (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError),
        EngineBusy,
        "{where}: {line}; nothing was done, check for long transactions (pg_stat_activity)",
    ),
    (
        (asyncpg.UndefinedObjectError, asyncpg.CantChangeRuntimeParamError),
        BadConfiguration,
        "{where}: {line}; correct the query string of the URL",
    ),
    (
        (asyncpg.ProtocolViolationError,),
        BadConfiguration,
        "{where}: {line}; for a pooler in transaction mode add ?notify=off to the URL",
    ),
    (
        (asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError, asyncpg.CrashShutdownError),
        EngineUnavailable,
        "{where}: {line}; retry when the server is up",
    ),
    ((asyncpg.PostgresError,), EngineUnavailable, "{where}: {line}"),
    ((asyncio.TimeoutError,), EngineUnavailable, "{where} is not responding; is the server running and reachable?"),
    ((asyncpg.ClientConfigurationError, ValueError), BadConfiguration, "engine URL: {line}"),
)
"""The advice for each error; the first match is used."""


def is_repeatable(error: BaseException) -> bool:
    """Whether nothing was done, so that the transaction may be repeated."""
    if isinstance(error, asyncpg.InternalClientError):
        # The connection was being closed, so the statement was not sent; other messages follow a reply.
        return "cannot switch to state" in str(error)
    return isinstance(error, REPEATABLE)


def ends_connection(error: asyncpg.PostgresError) -> bool:
    """Whether the server closes the connection after this error."""
    return getattr(error, "severity_en", None) in ("FATAL", "PANIC")


def _line(error: BaseException) -> str:
    """The first line of an error's text; the driver never puts the password in it."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")
