"""Django tasks with the options of an Everwork job."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final

from everwork.core.retry import RetryPolicy
from everwork.django.compat import DEFAULT_QUEUE, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EverworkTask(Task):
    """The task that `@task` creates with this backend: Django's `Task` with options for its jobs.

    Django 6.1 and django-tasks accept the options in `@task(max_attempts=5)` and `using`, Django 6.0 only in `using`.
    """

    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    dedupe_key: str | None = None
    limit_key: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    expires_at: datetime | None = None

    def using(  # noqa: PLR0913 - every option of a task
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        dedupe_key: str | None = None,
        limit_key: str | None = None,
        tenant: str | None = None,
        correlation_id: str | None = None,
        expires_at: datetime | None = None,
    ) -> Any:
        """Return the same task with other options; options that are not passed keep their values."""
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        return replace(self, **given)


OWN_OPTIONS: Final = tuple(set(EverworkTask.__dataclass_fields__) - {field.name for field in fields(Task)})


def job_options(task: Any) -> dict[str, Any]:
    """The Everwork options of a task, which Django does not know; empty for a task of another backend."""
    given = {name: getattr(task, name, None) for name in OWN_OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


# The type of a task's jobs ---------------------------------------------------------------------------------


def type_of(path: str, queue: str) -> str:
    """The job type of a task: its path, followed by its queue unless it is the default queue."""
    return path if queue == DEFAULT_QUEUE else f"{path}@{queue}"


def path_and_queue(type: str) -> tuple[str, str]:
    """The inverse of `type_of`."""
    path, _, queue = type.partition("@")
    return path, queue or DEFAULT_QUEUE
