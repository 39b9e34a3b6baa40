"""Handles of created jobs, and calls that have not been created yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeVar

from everwork.core.job import NewJob
from everwork.core.leasing import Created

if TYPE_CHECKING:
    from everwork.app.app import Everwork
    from everwork.codec.job_values import Job
    from everwork.core.job import HistoryEntry
    from everwork.core.queries import Explanation

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Load = Callable[[Any], Any]
"""Converts a stored result to the function's return type."""


class JobKey(int):
    """A job's key, an `int`. `deduplicated` is True if a job with the same dedupe key already existed.

    In offline mode, `is_spooled` is True if the engine was unavailable and the job is in the local spool under its
    `spool_id`. The number is then negative and not a real key; `await app.delivered(key)` returns the real one.
    """

    deduplicated: bool = False
    spool_id: str = ""

    @property
    def is_spooled(self) -> bool:
        """Whether the job is in the local spool and has no key yet."""
        return bool(self.spool_id)

    @classmethod
    def of(cls, created: Created) -> Self:
        """The key of a created job."""
        key = cls(created.key)
        if created.deduplicated:
            key.deduplicated = True
        if created.spool_id:
            key.spool_id = created.spool_id
        return key


_INSTEAD: Final = {
    **dict.fromkeys(("state", "status"), "write (await handle.get()).state"),
    **dict.fromkeys(("id", "task_id", "job_id", "key"), "a handle is the key itself, an int"),
    **dict.fromkeys(("wait", "wait_result", "return_value"), "write await handle.result(timeout=...)"),
    **dict.fromkeys(("ready", "successful", "failed", "is_finished"), "compare (await handle.get()).state"),
    **dict.fromkeys(("revoke", "abort"), "write await handle.cancel()"),
}
"""Names from the result objects of other job queues, and what to write instead."""


class AnyHandle(JobKey):
    """Shared by `JobHandle` and `SyncJobHandle`."""

    app: Everwork
    load: Load | None
    """Converts the result; None returns plain JSON values."""

    @classmethod
    def bound(cls, app: Everwork, load: Load | None) -> type[Self]:
        """A subclass with these attributes on the class, so that a handle costs no more memory than an int."""
        return type(cls.__name__, (cls,), {"app": app, "load": load})

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickled as the job's key, because another process has another application."""
        return int, (int(self),)

    if not TYPE_CHECKING:  # Type checkers would accept every name.

        def __getattr__(self, name: str) -> NoReturn:
            hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(f"a handle has no attribute {name!r}{hint}", name=name, obj=self)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {int(self)}>"

    def __str__(self) -> str:
        return int.__repr__(self)


def loaded(key: int, value: Any) -> Any:
    """A stored result, converted to the return type of the handle's function; without a handle, plain JSON values."""
    load = key.load if isinstance(key, AnyHandle) else None
    return value if load is None or value is None else load(value)


class JobHandle(AnyHandle, Generic[R_co]):
    """A created job: its key (an `int`) with methods to wait for, inspect and change the job.

    Example: `handle = await send.enqueue(to="ada")`, then `await handle.result(timeout=30)`.
    """

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to finish and return its result; see `Everwork.result`."""
        value: R_co = await self.app.result(self, timeout)
        return value

    async def get(self) -> Job:
        """Return the job in its current state."""
        return await self.app.get(self)

    async def history(self) -> list[HistoryEntry]:
        """Return how each attempt of the job ended, oldest first."""
        return await self.app.history(self)

    async def explain(self) -> Explanation:
        """Explain why the job is not running."""
        return await self.app.explain(self)

    async def cancel(self, reason: str = "") -> None:
        """Cancel the job, whether it is pending or running."""
        await self.app.cancel(self, reason)

    async def requeue(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Requeue the job if it is a dead letter or waiting for a retry; see `Everwork.requeue`."""
        await self.app.requeue(self, arguments)

    async def delivered(self, timeout: float | None = None) -> JobHandle[R_co]:
        """Wait until a spooled job is delivered, and return its new handle; see `Everwork.delivered`."""
        return _with_app(JobHandle(await self.app.delivered(self, timeout)), self)

    @property
    def sync(self) -> SyncJobHandle[R_co]:
        """A blocking version of this handle, for synchronous code."""
        return _with_app(SyncJobHandle(self), self)


class SyncJobHandle(AnyHandle, Generic[R_co]):
    """`JobHandle` for synchronous code: each call blocks."""

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to finish and return its result; see `Everwork.result`."""
        value: R_co = self.app.sync.result(self, timeout)
        return value

    def get(self) -> Job:
        """Return the job in its current state."""
        return self.app.sync.get(self)

    def history(self) -> list[HistoryEntry]:
        """Return how each attempt of the job ended, oldest first."""
        return self.app.sync.history(self)

    def explain(self) -> Explanation:
        """Explain why the job is not running."""
        return self.app.sync.explain(self)

    def cancel(self, reason: str = "") -> None:
        """Cancel the job, whether it is pending or running."""
        self.app.sync.cancel(self, reason)

    def requeue(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Requeue the job if it is a dead letter or waiting for a retry; see `Everwork.requeue`."""
        self.app.sync.requeue(self, arguments)

    def delivered(self, timeout: float | None = None) -> SyncJobHandle[R_co]:
        """Wait until a spooled job is delivered, and return its new handle; see `Everwork.delivered`."""
        return _with_app(SyncJobHandle(self.app.sync.delivered(self, timeout)), self)


H = TypeVar("H", bound=AnyHandle)


def _with_app(handle: H, other: AnyHandle) -> H:
    """A handle of the same job, or of the job that a spooled one has become."""
    handle.app, handle.load = other.app, other.load
    if int(handle) == int(other):
        handle.deduplicated, handle.spool_id = other.deduplicated, other.spool_id
    return handle


@dataclass(frozen=True, slots=True, eq=False)
class JobCall(Generic[R_co]):
    """A job that has not been created yet: a type, its arguments and options.

    `send.call(...)` and `app.call(...)` return one; pass a list of them to `app.enqueue_many`.
    """

    new: NewJob
    load: Load | None = None
