"""The user's own transactions: every driver that an engine lets join, behind one face."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from typing import Any, Final, NamedTuple

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_async

from tests.stores import EVERYTHING, WAYS


class Own(NamedTuple):
    """A connection or session of the user's, and what the user does with it."""

    tx: Any
    run: Callable[[str], Awaitable[object]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]


Opening = Callable[[str, bool], AbstractAsyncContextManager[Own]]
"""Opens a store's URL; False: in autocommit, with no transaction begun."""


def later(act: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A synchronous call that is awaited like the others."""

    async def call(*arguments: Any) -> Any:
        return act(*arguments)

    return call


@asynccontextmanager
async def _sqlite3(url: str, begin: bool) -> AsyncIterator[Own]:
    with closing(sqlite3.connect(_path(url), isolation_level=None)) as own:
        if begin:
            own.execute("BEGIN IMMEDIATE")
        yield Own(own, later(own.execute), later(own.commit), later(own.rollback))


@asynccontextmanager
async def _aiosqlite(url: str, begin: bool) -> AsyncIterator[Own]:
    async with aiosqlite.connect(_path(url), isolation_level=None) as own:
        if begin:
            await own.execute("BEGIN IMMEDIATE")
        yield Own(own, own.execute, own.commit, own.rollback)


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///").partition("?")[0]


@asynccontextmanager
async def _asyncpg(url: str, begin: bool) -> AsyncIterator[Own]:
    own = await asyncpg.connect(_bare(url))
    transaction = own.transaction()
    if begin:
        await transaction.start()
    run = lambda sql: own.execute(sql)  # noqa: E731, PLW0108 - looked up each time, as users do
    yield Own(own, run, transaction.commit, transaction.rollback)
    await own.close()


@asynccontextmanager
async def _asyncpg_pool(url: str, begin: bool) -> AsyncIterator[Own]:
    async with asyncpg.create_pool(_bare(url), min_size=1, max_size=1) as pool, pool.acquire() as own:
        transaction = own.transaction()
        if begin:
            await transaction.start()
        yield Own(own, own.execute, transaction.commit, transaction.rollback)


@asynccontextmanager
async def _psycopg(url: str, begin: bool) -> AsyncIterator[Own]:
    with closing(psycopg.connect(_bare(url), autocommit=not begin)) as own:
        yield Own(own, later(own.execute), later(own.commit), later(own.rollback))


@asynccontextmanager
async def _psycopg2(url: str, begin: bool) -> AsyncIterator[Own]:
    with closing(psycopg2.connect(_bare(url))) as own:
        own.autocommit = not begin
        yield Own(own, later(own.cursor().execute), later(own.commit), later(own.rollback))


@asynccontextmanager
async def _psycopg_async(url: str, begin: bool) -> AsyncIterator[Own]:
    own = await psycopg.AsyncConnection.connect(_bare(url), autocommit=not begin)
    yield Own(own, own.execute, own.commit, own.rollback)
    await own.close()


def _sqlalchemy(make: Callable[[sqlalchemy.Engine], Any], driver: str = "psycopg") -> Opening:
    @asynccontextmanager
    async def opened(url: str, begin: bool) -> AsyncIterator[Own]:
        engine = sqlalchemy.create_engine(_bare(url, driver), **_isolation(begin))
        with closing(make(engine)) as own:
            yield Own(own, lambda sql: later(own.execute)(sqlalchemy.text(sql)), later(own.commit), later(own.rollback))
        engine.dispose()

    return opened


def _sqlalchemy_async(driver: str, make: Callable[[sqlalchemy_async.AsyncEngine], Any]) -> Opening:
    @asynccontextmanager
    async def opened(url: str, begin: bool) -> AsyncIterator[Own]:
        engine = sqlalchemy_async.create_async_engine(_bare(url, driver), **_isolation(begin))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(engine.dispose)
            own = await stack.enter_async_context(make(engine))
            yield Own(own, lambda sql: own.execute(sqlalchemy.text(sql)), own.commit, own.rollback)

    return opened


def _bare(url: str, driver: str = "") -> str:
    """The URL as drivers understand it: without the engine's own options."""
    return url.partition("?")[0].replace("://", f"+{driver}://" if driver else "://", 1)


def _isolation(begin: bool) -> dict[str, Any]:
    return {} if begin else {"isolation_level": "AUTOCOMMIT"}


_POSTGRES: Final[dict[str, Opening]] = {
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "psycopg-async": _psycopg_async,
    "sqlalchemy": _sqlalchemy(lambda engine: engine.connect()),
    "sqlalchemy-session": _sqlalchemy(orm.Session),
    "sqlalchemy-asyncpg": _sqlalchemy_async("asyncpg", lambda engine: engine.connect()),
    "sqlalchemy-asyncpg-session": _sqlalchemy_async("asyncpg", sqlalchemy_async.AsyncSession),
    "sqlalchemy-psycopg-async": _sqlalchemy_async("psycopg", lambda engine: engine.connect()),
}
_SQLITE: Final[dict[str, Opening]] = {
    "sqlite3": _sqlite3,
    "aiosqlite": _aiosqlite,
    "sqlalchemy-sqlite": _sqlalchemy(lambda engine: engine.connect(), "pysqlite"),
    "sqlalchemy-sqlite-session": _sqlalchemy(orm.Session, "pysqlite"),
    "sqlalchemy-aiosqlite": _sqlalchemy_async("aiosqlite", lambda engine: engine.connect()),
    "sqlalchemy-aiosqlite-session": _sqlalchemy_async("aiosqlite", sqlalchemy_async.AsyncSession),
}
OPENINGS: Final[dict[str, Opening]] = {**_SQLITE, **_POSTGRES}
SYNCHRONOUS: Final = {name for name in OPENINGS if "async" not in name and "aio" not in name}

_BY_ENGINE: Final = {"sqlite": list(_SQLITE), "postgres": list(_POSTGRES), "redis": []}
_ONE_OF_EACH: Final = {"sqlite3", "aiosqlite", "asyncpg", "psycopg"}
SOME: Final = {*_ONE_OF_EACH, "sqlalchemy-session"}
_OFTEN: Final = set(OPENINGS) - {"sqlalchemy-sqlite", "sqlalchemy-aiosqlite"}
DRIVERS: Final = [
    (way, driver)
    for way in WAYS
    for driver in _BY_ENGINE[way.partition("-")[0]]
    if EVERYTHING or driver in (_ONE_OF_EACH if "-" in way else _OFTEN)
]
"""Every way to write, with every driver whose transactions it joins; in further ways, one driver of each sort."""
