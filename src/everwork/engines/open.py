"""Open an engine by its URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from everwork.core.checks import shown
from everwork.engines.base import Clock, Engine
from everwork.exceptions import BadConfiguration

SCHEMES = ("sqlite",)


def open_engine(url: str, *, clock: Clock | None = None, own_loop: bool = False) -> Engine:
    """The engine that a URL names, not yet opened. Engines are imported only when they are asked for.

    `own_loop` says that the event loop serves nothing but this engine, and may stand still while it writes.
    """
    if not isinstance(url, str):
        raise BadConfiguration(f"engine URL: must be a text like sqlite:///jobs.db, not {shown(url)}")
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise BadConfiguration(f"engine URL: cannot be read: {error}") from None
    match scheme:
        case "sqlite":
            from everwork.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 - only what is used is loaded

            return SqliteEngine.from_url(url, clock=clock, own_loop=own_loop)
        case _:
            allowed = ", ".join(f"{known}://" for known in SCHEMES)
            raise BadConfiguration(f"engine URL: unknown scheme {scheme!r}; it must start with one of {allowed}")
