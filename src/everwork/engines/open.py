"""Open an engine by its URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from everwork.codec.urls import require_encoded
from everwork.core.checks import shown
from everwork.engines.contract import Clock, Engine
from everwork.exceptions import BadConfiguration

SCHEMES = ("sqlite", "postgresql", "redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix")


def open_engine(url: str, *, clock: Clock | None = None, own_loop: bool = False) -> Engine:
    """The engine of a URL, not yet open. An engine's module is imported only when it is needed.

    `own_loop`: the event loop serves nothing but this engine, and may block while it writes.
    """
    if not isinstance(url, str):
        raise BadConfiguration(f"engine URL: must be a text like sqlite:///jobs.db, not {shown(url)}")
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if scheme not in ("sqlite", ""):
        require_encoded(url)
    try:
        urlsplit(url)
    except ValueError as error:
        raise BadConfiguration(f"engine URL: cannot be read: {error}") from None
    match scheme:
        case "sqlite":
            from everwork.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 - only what is used is loaded

            return SqliteEngine.from_url(url, clock=clock, own_loop=own_loop)
        case "postgresql" | "postgres":
            with _extra("postgres"):
                from everwork.engines.postgres.engine import PostgresEngine  # noqa: PLC0415
            return PostgresEngine.from_url(url, clock=clock)
        case "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+unix":
            with _extra("redis"):
                from everwork.engines.redis.engine import RedisEngine  # noqa: PLC0415
            return RedisEngine.from_url(url, clock=clock)
        case _:
            allowed = ", ".join(f"{known}://" for known in SCHEMES)
            raise BadConfiguration(f"engine URL: unknown scheme {scheme!r}; it must start with one of {allowed}")


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Name the extra that installs a missing driver."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("everwork"):
            raise
        raise BadConfiguration(
            f"engine URL: the driver {error.name!r} is not installed; run: pip install 'everwork[{name}]'"
        ) from None
