"""What waits for the commit of a transaction of the caller's, as SQLAlchemy's events or Django report it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

OnCommit = Callable[[Sequence[T]], None]
"""Called once the transaction has been committed, with what has waited for it."""


Start = Callable[[Sequence[T]], Callable[[], None]]
"""Called right after the commit; what it returns is called once the session is done with the transaction."""


class Commits(Protocol[T]):
    """Items that wait for the end of one transaction; a rollback, also to a savepoint, drops those added since."""

    @property
    def items(self) -> list[T]:
        """Those that would be committed now."""
        ...

    def add(self, item: T) -> None:
        """Let one more wait."""
        ...

    def stop(self) -> None:
        """Stop following transactions, and drop what waits."""
        ...


class SessionCommits(Generic[T]):
    """On a session of SQLAlchemy's, for all of its transactions; an asynchronous one is followed by its `sync_session`.

    An item belongs to the innermost transaction. When a savepoint is released, its items go to the transaction around
    it; what a transaction still owns when it ends was rolled back. An error raised once the session is done with the
    transaction leaves the session usable.
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
        """Those that would be committed now."""
        return [item for _, item in self._entries]

    def add(self, item: T) -> None:
        """Let one more wait; begins a transaction, as any use of the session does."""
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
    """The savepoint or root around a savepoint; a flush has a transaction of its own in between, which owns nothing."""
    around = transaction.parent
    while around.parent is not None and not around.nested:
        around = around.parent
    return around


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

    def stop(self) -> None:
        """Drop what waits; Django still calls `on_commit`."""
        self._entries = []

    def _committed(self, item: T) -> None:
        self._entries = [entry for entry in self._entries if entry[1] is not item]
        self._on_commit([item])
