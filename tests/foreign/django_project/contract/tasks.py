"""Tasks of every kind."""

import asyncio
from typing import Any

from django.db import connections, transaction

from everwork import RetryPolicy
from everwork.django import job_context
from shop.compat import task
from shop.models import Order

ran: list[str] = []
"""What has run in this process."""
ticks: list[str] = []


class Broken(Exception):
    """An error of the project's own."""


@task
def add(a: int, b: int = 0) -> int:
    ran.append(f"{a}+{b}")
    return a + b


@task
def fail(text: str = "no") -> None:
    raise Broken(text)


@task
def flaky() -> str:
    ran.append("flaky")
    if ran.count("flaky") == 1:
        raise Broken("the first time")
    return "done"


@task
async def add_async(a: int, b: int) -> int:
    return a + b + await Order.objects.acount()


@task(takes_context=True)
def describe(context: Any, word: str) -> dict[str, Any]:
    return {"word": word, "attempt": context.attempt, "id": context.task_result.id}


@task
def unstorable() -> object:
    ran.append("unstorable")
    return object()


@task
async def hang() -> None:
    await asyncio.Event().wait()


@task
def book(database: str, email: str) -> None:
    """Its order and its completion are one step; what follows the commit changes neither."""
    with transaction.atomic(using=database):
        Order.objects.using(database).create(email=email, amount=1)
        job_context().sync.complete(tx=connections[database])
    raise Broken("after the commit")


@task
def tick() -> None:
    ticks.append("tick")


twice = flaky.using(retry=RetryPolicy(max_attempts=2, base=0))
nobody_home = add.using(backend="unreachable")
"""Declared when the module is imported: that must not connect."""
