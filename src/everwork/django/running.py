"""Runs Django's tasks in a worker: connections, context, signals."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.cache import caches
from django.db import close_old_connections, connections, reset_queries
from django.utils import timezone

from everwork.codec.json import encode
from everwork.core import outcome as o
from everwork.core.leasing import Failure, Judged
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.django import results
from everwork.django.backend import EverworkBackend
from everwork.django.compat import (
    TaskContext,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from everwork.exceptions import BadConfiguration, Fail
from everwork.logs import get_logger
from everwork.runtime.attempt import Attempt
from everwork.runtime.context import JobContext
from everwork.runtime.job_log import final_failure

log = get_logger("everwork")

_job_context: Final[ContextVar[JobContext | None]] = ContextVar("everwork-django-job", default=None)


def job_context() -> JobContext:
    """Return the `JobContext` of the running task: its key, `cancelled`, `sync.complete(tx=...)`."""
    found = _job_context.get()
    if found is None:
        raise BadConfiguration("job_context: must be called inside a task that Everwork runs")
    return found


class TaskRunner:
    """Runs the tasks of one backend. Plain functions run in threads, async functions in the worker's event loop."""

    def __init__(self, backend: EverworkBackend) -> None:
        self._backend = backend
        self._sender = type(backend)
        self._running: dict[int, Any] = {}
        """The results of running tasks, until their outcomes are stored."""
        self._signals = ThreadPoolExecutor(1, thread_name_prefix="everwork-django-signals")

    def run(self, ctx: JobContext, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None) -> Any:
        """Call a plain function in its own thread, with its own connections."""
        _job_context.set(ctx)
        _start_afresh()
        try:
            result = self._begin(ctx, args or [], kwargs or {})
            task_started.send_robust(self._sender, task_result=result)
            return _kept(result, _call(result)())
        finally:
            close_old_connections()
            caches.close_all()
            self._forget_if_stopped(ctx)

    async def run_async(
        self, ctx: JobContext, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call an async function. Its database calls run in one thread, which ends with the task."""
        _job_context.set(ctx)
        async with ThreadSensitiveContext():
            try:
                result = await sync_to_async(self._begin)(ctx, args or [], kwargs or {})
                await task_started.asend_robust(self._sender, task_result=result)
                return _kept(result, await _call(result)())
            finally:
                await sync_to_async(_close_all)()
                self._forget_if_stopped(ctx)

    def _begin(self, ctx: JobContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of a task that is starting an attempt; from the second attempt on, it is read from the store."""
        if ctx.attempt > 1:
            result = self._backend.get_result(str(ctx.key))
        else:
            task = results.task_of(ctx.type, self._backend.alias, ctx.priority, ctx.headers.get(results.RUN_AFTER))
            result = results.new_result(task, self._backend.alias, ctx.key, args, kwargs)
            now = timezone.now()
            _set(result, enqueued_at=results.moment(ctx.created_at_ms), started_at=now, last_attempted_at=now)
            result.worker_ids.append(self._backend.app.worker)
        _set(result, status=TaskResultStatus.RUNNING)
        self._running[ctx.key] = result
        return result

    def _forget_if_stopped(self, ctx: JobContext) -> None:
        """Forget a task that was cancelled or lost its lease: no outcome will be stored."""
        if ctx.cancelled:
            self._running.pop(ctx.key, None)

    # The end -------------------------------------------------------------------------------------------------

    def ended(self, attempt: Attempt, outcome: o.Outcome, judged: Judged) -> None:
        """Send `task_finished`, unless the attempt is retried.

        Called in the engine's thread when the outcome is stored; receivers run in their own thread.
        """
        key, result = attempt.job.key, self._running.pop(attempt.job.key, None)
        if attempt.completion is not None:  # The task completed its job in its own transaction.
            self._signals.submit(self._finish, key, None, None)
        elif judged.ok and isinstance(outcome, o.Complete):
            self._signals.submit(self._finish, key, result, None)
        elif judged.ok and _is_final(attempt, outcome, judged.failure):
            self._signals.submit(self._finish, key, None if attempt.error is None else result, attempt.error)

    def _finish(self, key: int, result: Any, error: BaseException | None) -> None:
        _start_afresh()
        try:
            if result is None:
                result = self._backend.get_result(str(key))
            else:
                _complete(result, error)
            _send_finished(self._sender, result, error)
        except TaskResultDoesNotExist:
            pass  # The job was deleted in the meantime.
        except Exception as problem:  # noqa: BLE001 - the last resort of a background thread
            log.error("task_finished was not sent", key=key, error=str(problem))
        finally:
            close_old_connections()


def _start_afresh() -> None:
    """Reset Django's state as before a request: clear the query log, and close broken and old connections."""
    reset_queries()
    close_old_connections()


def _close_all() -> None:
    """Close all connections of a thread that is about to end."""
    connections.close_all()
    caches.close_all()


def _complete(result: Any, error: BaseException | None) -> None:
    status = TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED
    _set(result, finished_at=timezone.now(), status=status)
    if error is not None:
        result.errors.append(results.error_from(error))


def _call(result: Any) -> Callable[[], Any]:
    task = result.task
    given = [TaskContext(task_result=result), *result.args] if task.takes_context else result.args
    return partial(task.func, *given, **result.kwargs)


def _kept(result: Any, value: Any) -> Any:
    """The return value of a task as JSON. If it cannot be stored, the task fails permanently: retrying cannot help."""
    try:
        kept = normalize_json(value)
        encode("result", kept, PAYLOAD_BYTES_MAX)
    except (TypeError, ValueError) as error:
        raise Fail(f"{type(error).__name__}: {error}") from error
    _set(result, _return_value=kept)
    return kept


def _is_final(attempt: Attempt, outcome: o.Outcome, failure: Failure | None) -> bool:
    if isinstance(outcome, o.Complete | o.Release):
        return False
    failure = failure or final_failure(attempt, outcome)
    return failure is not None and failure.retry_ms is None


def _send_finished(sender: type, result: Any, error: BaseException | None) -> None:
    """Send the signal while the exception is being handled: Django's own receiver logs it."""
    if error is None:
        task_finished.send_robust(sender, task_result=result)
        return
    try:
        raise error
    except BaseException:  # noqa: BLE001 - the task's own exception
        task_finished.send_robust(sender, task_result=result)


def _set(result: Any, **values: Any) -> None:
    """Set a field of a frozen result."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def is_coroutine(task: Any) -> bool:
    """Whether a task runs in the event loop."""
    return inspect.iscoroutinefunction(task.func)
