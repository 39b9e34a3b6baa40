"""Calls that are right, and calls that type checkers must refuse: each of those carries an ignore comment.

mypy checks this file with the rest (an ignore that is not needed is an error itself), pyright in test_pyright.py.
Nothing here is run.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type
from uuid import UUID

from everwork import Everwork, JobCall, JobContext, JobHandle, SyncJobHandle

app = Everwork("sqlite://")


@dataclass
class Receipt:
    """A result."""

    total: Decimal


@app.job("order-pay", timeout=5)
async def pay(ctx: JobContext, customer: UUID, amount: Decimal, note: str = "") -> Receipt:
    """Pay an order."""
    return Receipt(amount + len(note) + customer.int + ctx.attempt)


@app.job("pages-count")
def count(path: str, *, deep: bool = False) -> int:
    """Count pages."""
    return len(path) + deep


@app.job("any-keep")
async def keep(payload: object, times: int = 1) -> int:
    """Take any value first, which is no context."""
    return times if payload else 0


async def right(customer: UUID) -> None:
    """Everything here is typed as it is at run time."""
    handle = await pay.enqueue(customer=customer, amount=Decimal(1))
    assert_type(handle, JobHandle[Receipt])
    assert_type(await handle.result(timeout=5), Receipt)
    assert_type(await pay.using(delay=60, priority=1, dedupe_key="a").enqueue(customer, Decimal(1)), JobHandle[Receipt])
    assert_type(await app.enqueue(pay, customer, Decimal(1), note="x"), JobHandle[Receipt])
    assert_type(await app.using(run_at=datetime.now(UTC)).enqueue(count, "a", deep=True), JobHandle[int])
    assert_type(await app.enqueue("elsewhere", anything=1), JobHandle[Any])
    assert_type(await app.enqueue_many([count.call("a"), count.using(delay=1).call("b")]), list[JobHandle[int]])
    assert_type(count.call("a"), JobCall[int])
    assert_type(count.sync.enqueue("a"), SyncJobHandle[int])
    assert_type(count.using(delay=3).sync.enqueue("a").result(), int)
    assert_type(app.sync.using(priority=3).enqueue(count, "a"), SyncJobHandle[int])
    assert_type(await keep.enqueue(payload={"a": 1}, times=2), JobHandle[int])
    assert_type(await keep(payload=b""), int)
    assert_type(await app.within(object()).enqueue(count, "a"), JobHandle[int])
    await app.after_commit(object()).using(delay=3).enqueue(count, "a", deep=True)
    app.sync.after_commit(object()).enqueue("elsewhere", anything=1)
    assert_type(count("a", deep=True), int)
    called: Coroutine[Any, Any, Receipt] = pay(context(), customer, Decimal(1))
    assert_type(await called, Receipt)
    key: int = handle
    assert_type((await app.get(key)).variables, dict[str, Any])


async def wrong(customer: UUID) -> None:
    """Each call here is an error."""
    await pay.enqueue(customer=customer)  # type: ignore[call-arg]
    await pay.enqueue(customer="ada", amount=Decimal(1))  # type: ignore[arg-type]
    await pay.enqueue(customer=customer, amount=Decimal(1), nota="x")  # type: ignore[call-arg]
    await pay.enqueue(customer, Decimal(1), delay=60)  # type: ignore[call-arg]
    await pay.enqeue(customer=customer, amount=Decimal(1))  # type: ignore[attr-defined]
    await pay.delay(customer=customer)  # type: ignore[attr-defined]
    await keep.enqueue()  # type: ignore[call-arg]
    await keep.enqueue(1, times="2")  # type: ignore[arg-type]
    await pay.using(dely=60).enqueue(customer, Decimal(1))  # type: ignore[call-arg]
    pay.using(delay="60")  # type: ignore[arg-type]
    pay.using(run_at="tomorrow")  # type: ignore[arg-type]
    count.sync.enqueue(7)  # type: ignore[arg-type]
    count.call("a", True)  # type: ignore[call-arg]
    await app.enqueue(count, path=7)  # type: ignore[call-overload]
    await app.after_commit(object()).enqueue(count, path=7)  # type: ignore[call-overload]
    count(path=b"")  # type: ignore[arg-type]
    total: str = await (await count.enqueue("a")).result()  # type: ignore[assignment]
    app.job("settings", retries=3)  # type: ignore[call-arg]
    app.list(colour="red")  # type: ignore[call-arg]
    print(total)


def context() -> JobContext:
    """A context, for a direct call."""
    raise NotImplementedError
