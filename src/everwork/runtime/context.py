"""The context of a running job, passed to its handler."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from everwork.codec.json import decode_stored_object, encode
from everwork.core.leasing import Judged, accepted
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.core.outcome import Complete
from everwork.runtime.attempt import Attempt, Stop

if TYPE_CHECKING:
    from everwork.core.job import LeasedJob
    from everwork.runtime.events import EventCollector


class CompletesInTransaction(Protocol):
    """Completes attempts inside the handlers' own transactions."""

    async def complete_in(self, tx: object, completion: Complete) -> Judged:
        """Complete in the running event loop."""
        ...

    def complete_in_blocking(self, tx: object, completion: Complete) -> Judged:
        """Complete in the calling thread."""
        ...


class JobContext:
    """Information about the running job, for handlers that have a parameter annotated with it::

        @app.job("report-build")
        async def build(ctx: JobContext, day: str) -> None:
            print(ctx.key, ctx.attempt, ctx.max_attempts)

    Attributes: `key`, `type`, `tenant`, `priority`, `correlation_id` and `created_at_ms` of the job; `attempt`, the
    number of this attempt; `attempts`, how many count against `max_attempts`, including this one; `headers`; `state`,
    the value that the `lifespan` of the worker process yielded.
    """

    def __init__(
        self,
        attempt: Attempt,
        own: CompletesInTransaction,
        collector: EventCollector | None = None,
        state: Any = None,
    ) -> None:
        self._attempt = attempt
        self._own = own
        self._collector = collector
        self.state = state
        """The value that the lifespan of the worker process yielded; None without a lifespan."""
        job = cast("LeasedJob", attempt.job)  # Only a store's jobs have a context.
        self.key = job.key
        self.type = job.type
        self.tenant = job.tenant
        self.priority = job.priority
        self.attempt = job.attempt
        self.attempts = job.attempts
        self.max_attempts = job.max_attempts
        self.correlation_id = job.correlation_id
        self.created_at_ms = job.created_at_ms
        self._headers = job.headers

    @cached_property
    def headers(self) -> dict[str, Any]:
        """The headers that the job was created with."""
        return decode_stored_object("headers", self._headers) if self._headers else {}

    @property
    def sync(self) -> SyncJobContext:
        """The blocking version, for plain functions: `ctx.sync.complete(tx=connection)`."""
        return SyncJobContext(self._attempt, self._own, self._collector)

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the job was cancelled, timed out, or its lease was lost.

        For handlers in threads, which cannot be interrupted: check it regularly and return. Async handlers are
        cancelled automatically.
        """
        stop = self._attempt.stop
        return stop is not None and stop is not Stop.SHUTDOWN

    async def complete(self, result: Any = None, *, tx: object) -> None:
        """Complete the job in your own database transaction, so that its work and its completion commit together.

        `tx` is a connection or session to the database that holds the jobs. Emitted events are published with the
        commit; none can be emitted after this call. If the transaction rolls back, the job is not completed.

        Raises `LeaseLost` or `WrongState` if the job no longer belongs to this attempt; roll back in that case.
        """
        completion = _completion(self._attempt, self._collector, result)
        _note(self._attempt, completion, await self._own.complete_in(tx, completion))


class SyncJobContext:
    """`ctx.sync`: `JobContext` for plain functions, which run in threads and use blocking connections."""

    def __init__(self, attempt: Attempt, own: CompletesInTransaction, collector: EventCollector | None = None) -> None:
        self._attempt = attempt
        self._own = own
        self._collector = collector

    def complete(self, result: Any = None, *, tx: object) -> None:
        """Complete the job in your own database transaction; see `JobContext.complete`."""
        completion = _completion(self._attempt, self._collector, result)
        _note(self._attempt, completion, self._own.complete_in_blocking(tx, completion))


def _completion(attempt: Attempt, collector: EventCollector | None, result: Any) -> Complete:
    values = attempt.handler.result
    if result is not None and values is not None:
        result = values.dump("result", result, may_narrow=True)
    text = None if result is None else encode("result", result, PAYLOAD_BYTES_MAX)
    if collector is None:
        return Complete(attempt.job.key, attempt.job.attempt, text)
    collector.close()
    return Complete(attempt.job.key, attempt.job.attempt, text, tuple(collector.jobs))


def _note(attempt: Attempt, completion: Complete, judged: Judged) -> None:
    accepted(completion.key, judged, "completed")
    attempt.completion = completion
