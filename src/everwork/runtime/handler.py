"""What runs jobs, as the runtime sees it: a job function, or an instance of a worker class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from everwork.core.limits import DEFAULT_GROUP, EVENTS_MAX
from everwork.runtime.arguments import Arguments
from everwork.runtime.middleware import Middleware


class Place(NamedTuple):
    """Where jobs are taken from: a group of a type."""

    type: str
    group: str = DEFAULT_GROUP


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler:
    """One handler. It runs up to `concurrency` jobs at once, whichever of its places they come from.

    `name` is the worker's id, or a function's type. `is_final`: an exception or a time-out leaves the job failed for
    good. `can_emit`: its calls may emit events, so each has a collector. `index` is its number in its process, for the
    table that the process shares with its parent. `middleware` stands around its calls, the first outermost.
    """

    name: str
    places: tuple[Place, ...]
    function: Callable[..., Any]
    arguments: Arguments
    is_async: bool
    is_final: bool
    concurrency: int
    timeout: float
    can_emit: bool = True
    events_max: int = EVENTS_MAX
    settle_events_max: int = EVENTS_MAX
    index: int = 0
    middleware: tuple[Middleware, ...] = ()
