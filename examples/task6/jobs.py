"""The worker: what each type does, and which calls fail. It reports outcomes; the engine decides about retries."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from everwork import Everwork, Middleware, RetryPolicy
from everwork.testing import FailEveryNth, FailTypes

TYPES: Final = ("email", "report", "broken")
MAX_RETRIES: Final = 3
MAX_RETRIES_LIMIT: Final = 100
RETRY: Final = RetryPolicy(max_attempts=MAX_RETRIES, base=0.0, jitter=0.0)
"""Retried immediately: backoff would be `base=5.0`."""


def make_app(store: str, *, fail_every: int | None, fail_types: Collection[str]) -> Everwork:
    """The worker of a store. It runs one job at a time, so that the same jobs fail in every run."""
    app = Everwork(store, middleware=_failures(fail_every, fail_types))
    for type in TYPES:
        app.job(type, retry=RETRY)(process)
    return app


async def process(**payload: Any) -> dict[str, Any]:
    """Do the work."""
    return {"processed": payload}


def _failures(every: int | None, types: Collection[str]) -> list[Middleware]:
    """Fault injection, never random: all calls of these types, and every n-th of the others."""
    failures: list[Middleware] = [FailTypes(set(types))] if types else []
    return failures if every is None else [*failures, FailEveryNth(every)]
