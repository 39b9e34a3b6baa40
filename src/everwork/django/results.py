"""Jobs as Django's `TaskResult`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from everwork.codec.job_values import Job
from everwork.core.ending import TIMED_OUT
from everwork.core.job import COUNTED_KINDS, HistoryEntry
from everwork.core.states import State
from everwork.django.compat import InvalidTask, TaskError, TaskResult, TaskResultStatus
from everwork.django.stores import find_task
from everwork.django.task import path_and_queue

RUN_AFTER: Final = "run_after"
"""The header with a task's original `run_after`, because the job's own `run_at` changes with every retry."""

STATUS: Final = {
    State.PENDING: TaskResultStatus.READY,
    State.PROCESSING: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
WENT_WRONG: Final = (COUNTED_KINDS - {"complete"}) | {"cancel", "expire"}
CLASSES: Final = {
    "retry": "everwork.exceptions.Retry",
    "reject": "everwork.exceptions.Reject",
    "lapse": "everwork.exceptions.LeaseLost",
    "cancel": "everwork.exceptions.JobCancelled",
    "expire": "everwork.exceptions.JobCancelled",
}
"""The exceptions shown for outcomes that were not caused by an exception in the task."""
_TITLE: Final = "Traceback (most recent call last):\n"
_NAMED: Final = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")


def new_result(task: Any, backend: str, key: int | str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a newly enqueued task."""
    return TaskResult(
        task=task,
        id=str(key),
        status=TaskResultStatus.READY,
        enqueued_at=timezone.now(),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def result_of(job: Job, history: Sequence[HistoryEntry], backend: str) -> Any:
    """The result of a job; None if its type is not a task of this project."""
    task = task_of(job.type, backend, job.priority, (job.headers or {}).get(RUN_AFTER))
    if task is None:
        return None
    is_running = job.state is State.PROCESSING
    ran = [entry for entry in history if entry.kind in COUNTED_KINDS]
    starts = [entry.activated_at_ms for entry in ran if entry.activated_at_ms is not None]
    starts += [job.activated_at_ms] if is_running and job.activated_at_ms is not None else []
    result = TaskResult(
        task=task,
        id=str(job.key),
        status=STATUS[job.state],
        enqueued_at=moment(job.created_at_ms),
        started_at=moment(starts[0]) if starts else None,
        last_attempted_at=moment(starts[-1]) if starts else None,
        finished_at=None if job.finished_at_ms is None else moment(job.finished_at_ms),
        args=job.variables.get("args", []),
        kwargs=job.variables.get("kwargs", {}),
        backend=backend,
        errors=[error_of(entry, task.func.__module__) for entry in history if entry.kind in WENT_WRONG],
        worker_ids=[entry.worker or "" for entry in ran] + [job.worker or ""] * is_running,
    )
    if job.state is State.COMPLETED:
        object.__setattr__(result, "_return_value", job.result)
    return result


def task_of(type: str, backend: str, priority: int, run_after: str | None = None) -> Any:
    """The task of a job, with the options it was enqueued with; None if there is no such task."""
    path, queue = path_and_queue(type)
    task = find_task(path)
    if task is None:
        return None
    due = None if run_after is None else _in_zone(datetime.fromisoformat(run_after))
    if (task.queue_name, task.priority, task.backend, task.run_after) == (queue, priority, backend, due):
        return task
    try:
        return replace(task, queue_name=queue, priority=priority, backend=backend, run_after=due)
    except InvalidTask:
        return task  # The settings have changed, so this task can no longer be enqueued.


# Errors --------------------------------------------------------------------------------------------------------


def error_of(entry: HistoryEntry, module: str) -> Any:
    """The error of a failed attempt; `module` is the module of its task."""
    traceback = entry.traceback or ""
    path = _class_path(entry, traceback, module)
    return TaskError(exception_class_path=path, traceback=traceback or entry.error or "")


def error_from(raised: BaseException) -> Any:
    """The error of an attempt that has just raised an exception."""
    kind = type(raised)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(raised))
    )


def _class_path(entry: HistoryEntry, traceback: str, module: str) -> str:
    """The path of the exception class, which Python names in the first line below the frames of a traceback."""
    error = entry.error or ""
    if error.startswith(TIMED_OUT):
        return "builtins.TimeoutError"
    _, has_frames, below = traceback.rpartition(_TITLE)
    raised = next((found[1] for line in below.splitlines() if (found := _NAMED.match(line))), "") if has_frames else ""
    if "." in raised and not raised.startswith("everwork.exceptions."):
        return raised
    said = _NAMED.match(error)
    for name in (raised, said[1] if said else ""):
        for place in ("builtins", module):
            found = getattr(sys.modules.get(place), name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                return f"{found.__module__}.{found.__qualname__}"
    return CLASSES.get(entry.kind, "everwork.exceptions.Fail")


# Times -----------------------------------------------------------------------------------------------------------


def moment(at_ms: int) -> datetime:
    """A datetime as Django uses it: with a time zone, unless USE_TZ is False."""
    return _in_zone(datetime.fromtimestamp(at_ms / 1000, tz=UTC))


def aware(given: datetime) -> datetime:
    """A user's datetime with a time zone; without USE_TZ, the datetime is taken to be in TIME_ZONE."""
    return timezone.make_aware(given) if timezone.is_naive(given) else given


def _in_zone(at: datetime) -> datetime:
    return at if settings.USE_TZ else timezone.make_naive(at)
