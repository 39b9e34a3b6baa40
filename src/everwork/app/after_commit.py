"""Creates jobs after the commit of a transaction in another database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, Unpack, overload

from everwork.app.commits import SessionCommits
from everwork.app.enqueuer import Door, FunctionEnqueuer, Pair, _Calls
from everwork.app.handle import JobCall
from everwork.app.options import JobOptions
from everwork.core.checks import shown
from everwork.core.job import NewJob
from everwork.engines.own_connection import OwnConnection, django_connection, is_scoped, is_session, own_connection
from everwork.exceptions import InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")

P = ParamSpec("P")
R = TypeVar("R")

Wait = Callable[[list[NewJob]], None]
"""Keeps jobs until the commit."""


class _AfterCommit(_Calls):
    """Options for jobs that are created after a commit."""

    def __init__(self, door: Door, options: Mapping[str, Any], wait: Wait) -> None:
        super().__init__(door, options)
        if self._tx is not None:
            raise InvalidInput("tx", "cannot be combined with after_commit")
        self._wait = wait

    def _enqueue(self, target: object, given: tuple[Any, ...], arguments: dict[str, Any]) -> None:
        self._wait([self._call(target, given, arguments).new])

    def _enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> None:
        self._wait([call.new for call in self._calls(jobs)])


class AfterCommitEnqueuer(_AfterCommit):
    """Returned by `app.after_commit(session)`. `enqueue` returns no handle: the job is created after the commit."""

    @overload
    async def enqueue(self, target: FunctionEnqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    async def enqueue(self, target: str, arguments: Mapping[str, Any] | None = None, /, **kwargs: Any) -> None: ...
    async def enqueue(self, target: Any, /, *args: Any, **kwargs: Any) -> None:
        """Create a job after the commit; its arguments are validated now. See `Enqueuer.enqueue`."""
        self._enqueue(target, args, kwargs)

    async def enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> None:
        """Create many jobs after the commit; see `Enqueuer.enqueue_many`."""
        self._enqueue_many(jobs)

    def using(self, **options: Unpack[JobOptions]) -> AfterCommitEnqueuer:
        """Set options; see `Enqueuer.using`."""
        return AfterCommitEnqueuer(self._door, {**self._options, **options}, self._wait)

    @property
    def sync(self) -> SyncAfterCommitEnqueuer:
        """A blocking version, for synchronous code."""
        return SyncAfterCommitEnqueuer(self._door, self._options, self._wait)


class SyncAfterCommitEnqueuer(_AfterCommit):
    """`AfterCommitEnqueuer` for synchronous code."""

    @overload
    def enqueue(self, target: FunctionEnqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def enqueue(self, target: str, arguments: Mapping[str, Any] | None = None, /, **kwargs: Any) -> None: ...
    def enqueue(self, target: Any, /, *args: Any, **kwargs: Any) -> None:
        """Create a job after the commit; its arguments are validated now. See `Enqueuer.enqueue`."""
        self._enqueue(target, args, kwargs)

    def enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> None:
        """Create many jobs after the commit; see `Enqueuer.enqueue_many`."""
        self._enqueue_many(jobs)

    def using(self, **options: Unpack[JobOptions]) -> SyncAfterCommitEnqueuer:
        """Set options; see `Enqueuer.using`."""
        return SyncAfterCommitEnqueuer(self._door, {**self._options, **options}, self._wait)


def waiting_for_commit(door: Door, session: object) -> Wait:
    """Returns the function that keeps jobs until a SQLAlchemy session or a Django connection commits.

    A scoped session and Django's `connection` differ in each thread, so they are looked up for each job.
    """
    if is_scoped(session):
        return lambda jobs: _wait_for(door, session)(jobs)  # noqa: PLW0108 - looked up when it is called
    return _wait_for(door, session)


def _wait_for(door: Door, session: object) -> Wait:
    connection = django_connection(session)
    if connection is not None:
        return lambda jobs: connection.on_commit(partial(_create_blocking, door, jobs))
    own = own_connection(session, ACCEPTED, "session")
    if not own.is_sqlalchemy or not is_session(own.connection):
        raise InvalidInput("session", f"must be {ACCEPTED}, not {shown(session)}")
    return _of_session(door, own).add


def _of_session(door: Door, own: OwnConnection) -> SessionCommits[list[NewJob]]:
    """The jobs that wait for this session; its events are subscribed to only once."""
    session = own.connection.sync_session if own.is_asynchronous else own.connection
    commits: SessionCommits[list[NewJob]] | None = session.info.get(door)
    if commits is None:
        start = _start_creating if own.is_asynchronous else partial(partial, _create_blocking)
        commits = SessionCommits(session, lambda batches: start(door, [job for jobs in batches for job in jobs]))
        session.info[door] = commits
    return commits


_creating: Final[set[asyncio.Task[None]]] = set()
"""Strong references: an event loop keeps only weak ones to its tasks."""


def _start_creating(door: Door, jobs: list[NewJob]) -> Callable[[], None]:
    """Create jobs in a separate task, so that cancelling a caller after its commit does not lose them.

    The returned function waits for the task inside SQLAlchemy's coroutine, without blocking the event loop.
    """
    from sqlalchemy.util import await_only  # noqa: PLC0415 - the session is here, so it is installed

    creating = asyncio.create_task(_create(door, jobs))
    _creating.add(creating)
    creating.add_done_callback(_forget)
    return lambda: await_only(asyncio.shield(creating))


async def _create(door: Door, jobs: list[NewJob]) -> None:
    with _logged_if_lost(jobs):
        await door.create(jobs, None)


def _forget(created: asyncio.Task[None]) -> None:
    _creating.discard(created)
    _ = created.cancelled() or created.exception()  # The error was logged; the caller may have been cancelled.


def _create_blocking(door: Door, jobs: list[NewJob]) -> None:
    with _logged_if_lost(jobs):
        door.create_blocking(jobs, None)


@contextmanager
def _logged_if_lost(jobs: Sequence[NewJob]) -> Iterator[None]:
    """Log jobs that could not be created: the caller may have been cancelled and never see the error."""
    try:
        yield
    except BaseException as error:
        types, problem = sorted({job.type for job in jobs}), str(error) or type(error).__name__
        log.error("jobs were not created after the commit", types=types, jobs=len(jobs), error=problem)
        raise


ACCEPTED = "a SQLAlchemy session or a Django connection"
