"""A small shop: an order and the job that confirms it are created in one transaction; the dashboard is at /jobs."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.security import HTTPBasic
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from everwork import Access, Everwork

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
"""Orders and jobs share a database, so that one transaction can create both."""
PASSWORD = os.environ.get("SHOP_PASSWORD", "")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}

scheme, _, rest = URL.partition(":")
database = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
sessions = async_sessionmaker(database, expire_on_commit=False)
jobs = Everwork(URL)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    is_confirmed: Mapped[bool] = mapped_column(default=False)


# Jobs ------------------------------------------------------------------------------------------------


@jobs.job("order-confirm")
async def confirm(order: int) -> str:
    async with sessions.begin() as session:
        found = await session.get_one(Order, order)
        found.is_confirmed = True
    return f"confirmed to {found.email}"


# Web -------------------------------------------------------------------------------------------------


class NewOrder(BaseModel):
    email: str
    is_refused: bool = False
    """Fails the order after its job was enqueued, to show that neither is stored."""


class Placed(BaseModel):
    order: int
    job: str


@asynccontextmanager
async def tables(_api: FastAPI) -> AsyncIterator[None]:
    async with database.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await database.dispose()


basic = HTTPBasic(realm="shop")


async def operators_only(request: Request) -> Access | None:
    """Full access with the right password; no access if no password is set."""
    given = await basic(request)
    if given is None or not PASSWORD or not secrets.compare_digest(given.password.encode(), PASSWORD.encode()):
        raise HTTPException(401, "wrong password", {"WWW-Authenticate": 'Basic realm="shop"'})
    return Access(given.username, ["*"])


api = FastAPI(title="shop", lifespan=jobs.lifespan(work=True, inner=tables))
api.mount("/jobs", jobs.dashboard(auth=operators_only))


@api.post("/orders", status_code=201)
async def place(new: NewOrder) -> Placed:
    async with sessions.begin() as session:
        order = Order(email=new.email)
        session.add(order)
        await session.flush()
        job = await confirm.within(session).enqueue(order=order.id)
        if new.is_refused:
            raise HTTPException(409, "the order is refused")
    return Placed(order=order.id, job=str(job))


@api.get("/orders")
async def orders() -> dict[int, bool]:
    async with sessions() as session:
        return {order.id: order.is_confirmed for order in await session.scalars(select(Order).order_by(Order.id))}
