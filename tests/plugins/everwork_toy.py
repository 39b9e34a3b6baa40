# ruff: noqa: INP001 - a module at the top, as packages install them
"""A package of somebody else's that provides an engine: SQLite by another name, `toy:///path`."""

from __future__ import annotations

from everwork.engines.contract import Clock, Engine
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.manager.stores import AbstractBackend, AbstractBroker


class ToyBackend(AbstractBackend):
    """The registry of such a store."""

    schemes = ("toy",)


class ToyBroker(AbstractBroker):
    """Publishes events to such a store."""

    schemes = ("toy",)


def open_toy(url: str, *, clock: Clock | None, own_loop: bool) -> Engine:
    """The engine of a `toy:` URL."""
    return SqliteEngine.from_url(f"sqlite{url.removeprefix('toy')}", clock=clock, own_loop=own_loop)


def open_nothing(url: str, *, clock: Clock | None, own_loop: bool) -> str:
    """Not an engine."""
    return "nothing"


def open_badly(url: str, *, clock: Clock | None, own_loop: bool) -> Engine:
    """Fails."""
    raise KeyError("no such driver")
