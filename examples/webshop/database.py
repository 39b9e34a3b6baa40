"""The shop's tables, in the database that also holds its jobs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from decimal import Decimal

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
"""One URL for both, so that an order and its job are created in one transaction."""
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}

scheme, _, rest = URL.partition(":")
engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")

    @property
    def total(self) -> Decimal:
        return Decimal(self.cents) / 100


async def create_tables() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


async def session() -> AsyncIterator[AsyncSession]:
    """A transaction for one request or job; committed on success."""
    async with sessions.begin() as opened:
        yield opened
