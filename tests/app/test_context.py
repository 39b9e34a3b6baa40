"""JobContext: what a handler can know of its job."""

from __future__ import annotations

from typing import Any

import pytest

from everwork import Everwork, JobContext, RetryPolicy
from everwork.exceptions import Retry
from tests.app.waiting import run_one
from tests.stores import START_MS

FACTS = ("key", "type", "tenant", "attempt", "attempts", "max_attempts", "correlation_id", "created_at_ms", "headers")


def facts(ctx: JobContext) -> dict[str, Any]:
    """Everything that the context tells."""
    return {name: getattr(ctx, name) for name in FACTS}


@pytest.mark.parametrize("plain", [False, True])
async def test_the_context_tells_what_the_job_was_created_with(app: Everwork, plain: bool) -> None:
    async def in_loop(context: JobContext) -> dict[str, Any]:
        return facts(context)

    def in_thread(context: JobContext) -> dict[str, Any]:
        return facts(context)

    app.job("tell")(in_thread if plain else in_loop)
    job = await run_one(
        app, "tell", using={"tenant": "acme", "correlation_id": "order-1", "max_attempts": 4, "headers": {"trace": [1]}}
    )
    assert await app.result(job.key) == {
        "key": job.key,
        "type": "tell",
        "tenant": "acme",
        "attempt": 1,
        "attempts": 1,
        "max_attempts": 4,
        "correlation_id": "order-1",
        "created_at_ms": START_MS,
        "headers": {"trace": [1]},
    }


async def test_a_job_without_headers_has_none_in_its_context(app: Everwork) -> None:
    @app.job("tell")
    async def tell(ctx: JobContext) -> dict[str, Any]:
        return ctx.headers

    job = await run_one(app, "tell")
    assert await app.result(job.key) == {}


async def test_the_context_counts_the_attempts(app: Everwork) -> None:
    @app.job("tell", retry=RetryPolicy(max_attempts=3))
    async def tell(ctx: JobContext) -> list[int]:
        if ctx.attempt < 3:
            raise Retry(delay=0)
        return [ctx.attempt, ctx.attempts, ctx.max_attempts]

    job = await run_one(app, "tell")
    assert await app.result(job.key) == [3, 3, 3]


async def test_a_handler_of_kwargs_gets_the_context_beside_them(app: Everwork) -> None:
    @app.job("tell")
    async def tell(ctx: JobContext, **rest: int) -> list[Any]:
        return [ctx.attempt, rest]

    job = await run_one(app, "tell", a=1)
    assert await app.result(job.key) == [1, {"a": 1}]
