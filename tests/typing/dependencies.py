"""Dependencies as type checkers see them; lines that they must refuse carry an ignore comment. Nothing here is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from everwork import Depends, Everwork, JobContext

app = Everwork("sqlite://")


class Session:
    """What handlers depend on."""


def function(ctx: JobContext) -> Session:
    """A function."""
    raise NotImplementedError(ctx)


async def coroutine() -> Session:
    """An async function."""
    return Session()


def generator() -> Iterator[Session]:
    """A generator."""
    yield Session()


def full_generator() -> Generator[Session, None, None]:
    """A generator with all of its types."""
    yield Session()


async def async_generator() -> AsyncIterator[Session]:
    """An async generator."""
    yield Session()


async def full_async_generator() -> AsyncGenerator[Session, None]:
    """An async generator with all of its types."""
    yield Session()


@contextmanager
def manager() -> Generator[Session, None, None]:
    """A context manager function."""
    yield Session()


@asynccontextmanager
async def async_manager() -> AsyncGenerator[Session, None]:
    """An async context manager function."""
    yield Session()


bound = partial(generator)
made = Session()


def right(
    *,
    a: Session = Depends(function),
    b: Session = Depends(coroutine),
    c: Session = Depends(generator),
    d: Session = Depends(full_generator),
    e: Session = Depends(async_generator),
    f: Session = Depends(full_async_generator),
    g: Session = Depends(manager),
    h: Session = Depends(async_manager, scope="process"),
    i: Session = Depends(Session),
    j: Session = Depends(bound),
) -> None:
    """Each becomes what it returns or yields."""


def wrong(
    *,
    a: int = Depends(function),  # type: ignore[assignment]
    b: int = Depends(coroutine),  # type: ignore[assignment]
    c: int = Depends(generator),  # type: ignore[assignment]
    d: int = Depends(async_generator),  # type: ignore[assignment]
    e: int = Depends(manager),  # type: ignore[assignment]
    f: int = Depends(async_manager),  # type: ignore[assignment]
    g: int = Depends(Session),  # type: ignore[assignment]
    h: Session = Depends(function, scope="app"),  # type: ignore[call-overload]
    i: Session = Depends(made),  # type: ignore[call-overload]
) -> None:
    """None of these fits."""


@app.job("order-ship")
async def ship(ctx: JobContext, order: int, session: Session = Depends(async_manager)) -> str:
    """Ship an order."""
    return f"{order} {session} {ctx.state}"


async def enqueue() -> None:
    """A dependency is not asked for."""
    text: str = await (await ship.enqueue(order=7)).result()
    await ship.enqueue("7")  # type: ignore[arg-type]
    print(text)
