"""Bare loops: the speed that the storage of an engine allows; the baseline of all ratios.

One table or equivalent, one index, no rules: no fencing, no counts, no history, no finished jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from benchmarks.bare import postgres, redis, sqlite
from benchmarks.bench import Bench, Timing


class Bare(NamedTuple):
    """The loops of one engine."""

    drain: Callable[[Bench, int], Coroutine[Any, Any, Timing]]
    """Claim 100 in one call, delete the 100 in the next, until nothing is left."""
    insert: Callable[[Bench, int, int], Coroutine[Any, Any, Timing]]
    """Insert a number of jobs, in calls of one size."""


_BARE = {module.__name__.rpartition(".")[2]: Bare(module.drain, module.insert) for module in (sqlite, postgres, redis)}


def bare_of(bench: Bench) -> Bare:
    """The loops of the measured engine."""
    return _BARE[bench.host.name]
