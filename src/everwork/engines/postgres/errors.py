"""What the driver says, as Everwork's own errors: one line, and what to do."""

from __future__ import annotations

import asyncio

import asyncpg

from everwork.engines.postgres.address import Address
from everwork.exceptions import BadConfiguration, EngineBusy, EngineError, EngineUnavailable

REPEATABLE = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)
"""The server took everything back: say it again."""

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, asyncio.TimeoutError, EOFError)


def translated(address: Address, error: BaseException) -> EngineError:
    """The error that a user is told."""
    where = address.shown
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return BadConfiguration(f"{where} refuses the user: {_line(error)}; check user and password (URL or PGPASSWORD)")
        case asyncpg.InvalidCatalogNameError():
            return BadConfiguration(f"{where}: {_line(error)}; create it (createdb) or correct the URL")
        case asyncpg.InsufficientPrivilegeError():
            return BadConfiguration(
                f"{where}: {_line(error)}; let the owner run `everwork migrate`, or GRANT USAGE, CREATE on schema"
                f" {address.schema} to this user"
            )
        case asyncpg.ReadOnlySQLTransactionError():
            return EngineUnavailable(f"{where} is read-only; name the primary server, not a replica")
        case asyncpg.TooManyConnectionsError():
            return EngineBusy(f"{where}: {_line(error)}; raise max_connections, or set a smaller ?pool=")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedFunctionError() | asyncpg.InvalidSchemaNameError():
            return EngineUnavailable(f"{where} holds no jobs in schema {address.schema!r}; run `everwork migrate`")
        case asyncpg.DiskFullError() | asyncpg.OutOfMemoryError():
            return EngineUnavailable(f"{where}: {_line(error)}; free space on the server, nothing was written")
        case asyncpg.QueryCanceledError() | asyncio.TimeoutError():
            return EngineBusy(f"{where} did not answer in time: {_line(error)}; look for long transactions (pg_stat_activity)")
        case asyncpg.UndefinedObjectError() | asyncpg.CantChangeRuntimeParamError():
            return BadConfiguration(f"{where}: {_line(error)}; correct the URL's query")
        case asyncpg.PostgresError():
            return EngineUnavailable(f"{where}: {_line(error)}")
        case asyncpg.ClientConfigurationError() | ValueError():
            return BadConfiguration(f"engine URL: {_line(error)}")
        case _:
            return EngineUnavailable(f"cannot reach {where}: {_line(error)}; is the server running?")


def _line(error: BaseException) -> str:
    """The first line of what an error says; the driver never puts the password in it."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")
