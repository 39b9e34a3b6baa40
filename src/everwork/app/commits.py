"""Items that wait for the commit of the caller's transaction, as reported by SQLAlchemy's events or Django."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

OnCommit = Callable[[Sequence[T]], None]
"""Called with the waiting items once the transaction is committed."""


Start = Callable[[Sequence[T]], Callable[[], None]]
"""Called right after the commit; the function it returns is called once the session is done with the transaction."""


class Commits(Protocol[T]):
    """Items that wait for the end of one transaction; a rollback, even to a savepoint, drops those added since."""

    @property
    def items(self) -> list[T]:
        """The items that would be committed now."""
        ...

    def add(self, item: T) -> None:
        """Add an item."""
        ...

    def stop(self) -> None:
        """Stop following transactions, and drop waiting items."""
        ...


class SessionCommits(Generic[T]):
    """For all transactions of a SQLAlchemy session; an async session is followed through its `sync_session`.

    An item belongs to the innermost transaction. When a savepoint is released, its items move to the enclosing
    transaction; items that a transaction still owns when it ends were rolled back. An error raised after the session is
    done with the transaction leaves the session usable.
    """

    def __init__(self, session: Any, start: Start[T]) -> None:
        from sqlalchemy import event  # noqa: PLC0415 - the session is here, so it is installed

        self._session = session
        self._start = start
        self._entries: list[tuple[Any, T]] = []
        self._finish: Callable[[], None] | None = None
        event.listen(session, "after_commit", self._after_commit)
        event.listen(session, "after_transaction_end", self._after_transaction_end)

    @property
    def items(self) -> list[T]:
        """The items that would be committed now."""
        return [item for _, item in self._entries]

    def add(self, item: T) -> None:
        """Add an item; this begins a transaction, as any use of the session does."""
        if not self._session.in_transaction():
            self._session.begin()
        self._entries.append((self._current, item))

    def stop(self) -> None:
        """Stop following the session."""
        from sqlalchemy import event  # noqa: PLC0415 - the session is here, so it is installed

        self._entries = []
        event.remove(self._session, "after_commit", self._after_commit)
        event.remove(self._session, "after_transaction_end", self._after_transaction_end)

    @property
    def _current(self) -> Any:
        return self._session.get_nested_transaction() or self._session.get_transaction()

    def _after_commit(self, _: object) -> None:
        ended: Any = self._current
        if ended.nested:
            around = _owner_around(ended)
            self._entries = [(around if owner is ended else owner, item) for owner, item in self._entries]
        elif self._entries:
            items, self._entries = self.items, []
            self._finish = self._start(items)

    def _after_transaction_end(self, _: object, transaction: Any) -> None:
        if transaction.parent is not None:
            self._entries = [entry for entry in self._entries if entry[0] is not transaction]
            return
        self._entries = []
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


def _owner_around(transaction: Any) -> Any:
    """The savepoint or root around a savepoint; a flush adds a transaction in between, which owns nothing."""
    around = transaction.parent
    while around.parent is not None and not around.nested:
        around = around.parent
    return around


class DjangoCommits(Generic[T]):
    """For a Django connection, which keeps the waiting items and makes the callbacks itself, even in Django's tests."""

    def __init__(self, connection: Any, on_commit: OnCommit[T]) -> None:
        self._connection = connection
        self._on_commit = on_commit
        self._entries: list[tuple[object, T]] = []

    @property
    def items(self) -> list[T]:
        """The items that would be committed now: a savepoint that is rolled back removes its callbacks."""
        waiting = {id(callback) for _, callback, *_ in self._connection.run_on_commit}
        return [item for callback, item in self._entries if id(callback) in waiting]

    def add(self, item: T) -> None:
        """Add an item; without a transaction it is committed immediately."""
        callback = partial(self._committed, item)
        self._entries.append((callback, item))
        self._connection.on_commit(callback)

    def stop(self) -> None:
        """Drop waiting items; Django still calls `on_commit`."""
        self._entries = []

    def _committed(self, item: T) -> None:
        self._entries = [entry for entry in self._entries if entry[1] is not item]
        self._on_commit([item])
