"""What waits for the commit of a transaction of the caller's, as SQLAlchemy's events or Django report it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

OnCommit = Callable[[Sequence[T]], None]
"""Called once the transaction has been committed, with what has waited for it."""


class Commits(Protocol[T]):
    """Items that wait for the end of one transaction; a rollback, also to a savepoint, drops those added since."""

    @property
    def items(self) -> list[T]:
        """Those that would be committed now."""
        ...

    def add(self, item: T) -> None:
        """Let one more wait."""
        ...


class SessionCommits(Generic[T]):
    """On a session of SQLAlchemy's, for all of its transactions; an asynchronous one is followed by its `sync_session`.

    An item belongs to the innermost transaction. When a savepoint is released, its items go to the transaction around
    it; what a transaction still owns when it ends was rolled back. `on_commit` is called when the session has done with
    the transaction, so that an error raised there leaves the session usable.
    """

    def __init__(self, session: Any, on_commit: OnCommit[T]) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - the session is here, so it is installed

        self._session = session
        self._on_commit = on_commit
        self._entries: list[tuple[Any, T]] = []
        self._is_committed = False
        event.listen(session, "after_commit", self._after_commit)
        event.listen(session, "after_transaction_end", self._after_transaction_end)

    @property
    def items(self) -> list[T]:
        """Those that would be committed now."""
        return [item for _, item in self._entries]

    def add(self, item: T) -> None:
        """Let one more wait; begins a transaction, as any use of the session does."""
        if not self._session.in_transaction():
            self._session.begin()
        self._entries.append((self._current, item))

    @property
    def _current(self) -> Any:
        return self._session.get_nested_transaction() or self._session.get_transaction()

    def _after_commit(self, _: object) -> None:
        ended: Any = self._current
        if ended.nested:
            self._entries = [(ended.parent if owner is ended else owner, item) for owner, item in self._entries]
        else:
            self._is_committed = True

    def _after_transaction_end(self, _: object, transaction: Any) -> None:
        if transaction.parent is not None:
            self._entries = [entry for entry in self._entries if entry[0] is not transaction]
            return
        items, is_committed = self.items, self._is_committed
        self._entries, self._is_committed = [], False
        if is_committed and items:
            self._on_commit(items)


class DjangoCommits(Generic[T]):
    """On a connection of Django's, which keeps what waits, and calls it itself, also from its tests."""

    def __init__(self, connection: Any, on_commit: OnCommit[T]) -> None:
        self._connection = connection
        self._on_commit = on_commit
        self._entries: list[tuple[object, T]] = []

    @property
    def items(self) -> list[T]:
        """Those that would be committed now: a savepoint that is rolled back takes its callbacks out."""
        waiting = {id(callback) for _, callback, *_ in self._connection.run_on_commit}
        return [item for callback, item in self._entries if id(callback) in waiting]

    def add(self, item: T) -> None:
        """Let one more wait; without a transaction it is committed now."""
        callback = partial(self._committed, item)
        self._entries.append((callback, item))
        self._connection.on_commit(callback)

    def _committed(self, item: T) -> None:
        self._entries = [entry for entry in self._entries if entry[1] is not item]
        self._on_commit([item])
