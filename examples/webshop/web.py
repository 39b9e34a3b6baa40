"""The shop's web application. Run it with: uvicorn webshop.web:api"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from everwork.exceptions import JobFailed, JobNotFound, ResultTimeout, WrongState
from webshop.database import Order, session
from webshop.jobs import app, pay, refresh, send_letter, write_export

Session = Annotated[AsyncSession, Depends(session)]

api = FastAPI(title="shop", lifespan=app.lifespan())


class NewOrder(BaseModel):
    customer: str
    total: Decimal


class Placed(BaseModel):
    order: int
    job: int


@api.post("/orders", status_code=201)
async def place(new: NewOrder, db: Session, idempotency_key: Annotated[str | None, Header()] = None) -> Placed:
    """Store the order and enqueue its job, or neither; a repeated request pays only once."""
    order = Order(customer=new.customer, cents=int(new.total * 100))
    db.add(order)
    await db.flush()
    jobs = pay.using(tx=db, correlation_id=f"order-{order.id}")
    if idempotency_key is not None:
        jobs = jobs.using(dedupe_key=idempotency_key)
    handle = await jobs.enqueue(order=order.id)
    if handle.deduplicated:
        raise HTTPException(409, f"already placed: job {handle}")
    if new.total <= 0:
        raise HTTPException(422, "the total must be above zero")  # Rolls back the order and the job.
    return Placed(order=order.id, job=handle)


@api.get("/jobs/{key}")
async def look(key: int) -> dict[str, object]:
    try:
        job, explained = await app.get(key), await app.explain(key)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
    return {"type": job.type, "state": job.state.label, "why": explained.text, "error": job.last_error}


@api.delete("/jobs/{key}", status_code=204)
async def cancel(key: int, reason: str = "cancelled by its owner") -> None:
    try:
        await app.cancel(key, reason)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
    except WrongState as error:
        raise HTTPException(409, str(error)) from None


@api.post("/letters", status_code=202)
async def send_letters(customers: int, issue: int) -> int:
    """Enqueue all letters or none, in one call."""
    letters = [send_letter.using(priority=-10).call(f"customer-{n}", issue) for n in range(customers)]
    return len(await app.enqueue_many(letters))


@api.post("/customers/{customer}/refresh")
async def refresh_customer(customer: str, wait: float = 5) -> Decimal:
    """Wait for a result, with a timeout."""
    handle = await refresh.using(limit_key=customer).enqueue(customer)
    try:
        return await handle.result(timeout=wait)
    except ResultTimeout:
        raise HTTPException(504, f"job {handle} is not done yet") from None
    except JobFailed as error:
        raise HTTPException(502, error.error) from None


@api.post("/exports", status_code=202)
async def export(rows: int) -> int:
    return await write_export.enqueue(rows=rows)
