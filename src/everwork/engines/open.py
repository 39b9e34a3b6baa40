"""Open an engine by its URL: one of the built-in engines, or one that an installed package provides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from everwork.codec.urls import SYNONYMS, engine_url, require_encoded
from everwork.core.checks import shown
from everwork.engines.contract import Clock, Engine
from everwork.exceptions import BadConfiguration, EverworkError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SCHEMES: Final = ("sqlite", "postgresql", "redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix")
GROUP: Final = "everwork.engines"
"""The entry points of packages that provide engines: a URL's scheme and its `MakeEngine`. Built-in schemes win."""


class MakeEngine(Protocol):
    """Creates the engine for a URL, not yet open."""

    def __call__(self, url: str, *, clock: Clock | None, own_loop: bool) -> Engine:
        """`clock` replaces the engine's own clock; for `own_loop`, see `open_engine`."""


def open_engine(url: str, *, clock: Clock | None = None, own_loop: bool = False) -> Engine:
    """The engine for a URL, not yet open. An engine's module is imported only when it is needed.

    `own_loop`: the event loop serves nothing but this engine, and may block while it writes.
    """
    if not isinstance(url, str):
        raise BadConfiguration(f"engine URL: must be a string like sqlite:///jobs.db, not {shown(url)}")
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if SYNONYMS.get(scheme, scheme) not in ("sqlite", ""):
        require_encoded(url)
    try:
        urlsplit(url)
    except ValueError as error:
        raise BadConfiguration(f"engine URL: cannot be read: {error}") from None
    url = engine_url(url)
    match SYNONYMS.get(scheme, scheme):
        case "sqlite":
            from everwork.engines.sqlite.engine import SqliteEngine  # noqa: PLC0415 - only what is used is loaded

            return SqliteEngine.from_url(url, clock=clock, own_loop=own_loop)
        case "postgresql":
            from everwork.engines.postgres.engine import PostgresEngine  # noqa: PLC0415

            return PostgresEngine.from_url(url, clock=clock)
        case "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+unix":
            from everwork.engines.redis.engine import RedisEngine  # noqa: PLC0415

            return RedisEngine.from_url(url, clock=clock)
        case _:
            return _provided(scheme, url, clock, own_loop)


def _provided(scheme: str, url: str, clock: Clock | None, own_loop: bool) -> Engine:
    """The engine that an installed package provides for a scheme."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - built-in engines do not need it

    provided = entry_points(group=GROUP)
    found = [one for one in provided if one.name == scheme]
    if not found:
        allowed = ", ".join(f"{known}://" for known in dict.fromkeys((*SCHEMES, *sorted(provided.names))))
        problem = f"unknown scheme {scheme!r}" if scheme else "has no scheme (a file is sqlite:///jobs.db)"
        raise BadConfiguration(f"engine URL: {problem}; it must start with one of {allowed}")
    if len(found) > 1:
        packages = " and ".join(sorted(_package(one) for one in found))
        raise BadConfiguration(f"engine URL: {scheme}:// is provided by {packages}; uninstall all but one")
    with _blamed(scheme, found[0]):
        make: MakeEngine = found[0].load()
        engine = make(url, clock=clock, own_loop=own_loop)
        if not isinstance(engine, Engine):
            raise TypeError(f"it must return an everwork.engines.contract.Engine, not {shown(engine)}")
        return engine


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


@contextmanager
def _blamed(scheme: str, point: EntryPoint) -> Iterator[None]:
    """Name the package whose engine cannot be created."""
    try:
        yield
    except EverworkError:
        raise
    except Exception as error:
        where = f"the engine of {scheme}:// ({point.value}, package {_package(point)})"
        raise BadConfiguration(
            f"engine URL: {where} cannot be used: {type(error).__name__}: {error}; update or uninstall the package"
        ) from error
