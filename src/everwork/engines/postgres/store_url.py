"""The URL of a store: a PostgreSQL URL, with Everwork's own settings in its query."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from everwork.exceptions import BadConfiguration

SCHEMA_DEFAULT: Final = "everwork"
CONNECTIONS_DEFAULT: Final = 4
CONNECTIONS_MAX: Final = 100
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,49}")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed URL. The DSN may hold a password, so it is never shown."""

    dsn: str = field(repr=False)
    shown: str
    schema: str = SCHEMA_DEFAULT
    notify: bool = True
    """False: only poll, and use nothing that needs a session of its own; for transaction-mode poolers."""
    connections: int = CONNECTIONS_DEFAULT

    @classmethod
    def from_url(cls, url: str) -> StoreUrl:
        """Parse a `postgresql:` URL; parameters that are not Everwork's own go to the driver."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadConfiguration(f"engine URL: cannot be read: {error}") from None
        if parts.fragment or "@" in parts.query.partition("=")[0]:
            raise BadConfiguration("engine URL: write ? # @ in user and password as %3F %23 %40")
        query = parse_qsl(parts.query, keep_blank_values=True)
        own = {name: value for name, value in query if name in ("schema", "notify", "pool")}
        # SQLAlchemy's URLs for asyncpg use ssl where all others use sslmode.
        rest = urlencode([("sslmode" if name == "ssl" else name, value) for name, value in query if name not in own])
        host = parts.hostname or dict(query).get("host") or os.environ.get("PGHOST") or "localhost"
        database = unquote(parts.path.lstrip("/")) or dict(query).get("dbname") or "the default database"
        return cls(
            urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")),
            f"PostgreSQL {database!r} on {host}" + (f":{port}" if port else ""),
            _schema(own.get("schema", SCHEMA_DEFAULT)),
            _notify(own.get("notify", "on")),
            _connections(own.get("pool", str(CONNECTIONS_DEFAULT))),
        )


def _schema(value: str) -> str:
    if not _SCHEMA.fullmatch(value) or value.startswith("pg_") or value == "information_schema":
        raise BadConfiguration(
            f"engine URL: schema must be 1 to 50 of a-z, 0-9 and _, without a leading digit or pg_, not {value!r}"
        )
    return value


def _notify(value: str) -> bool:
    if value not in ("on", "off"):
        raise BadConfiguration(f"engine URL: notify must be on or off, not {value!r}")
    return value == "on"


def _connections(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= CONNECTIONS_MAX:
        raise BadConfiguration(f"engine URL: pool must be a whole number from 1 to {CONNECTIONS_MAX}, not {value!r}")
    return int(value)
