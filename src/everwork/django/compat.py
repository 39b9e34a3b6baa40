"""Django's tasks, from Django itself (6.0 and newer) or from the package `django-tasks` (Django 5.2)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import django
from django.core.exceptions import ImproperlyConfigured

PACKAGE: Final = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        raise ImproperlyConfigured(
            "everwork.django needs Django 6.0 or newer, or Django 5.2 with the package django-tasks"
        ) from None


_base: Any = _module(f"{PACKAGE}.base")
_exceptions: Any = _module(f"{PACKAGE}.exceptions")
_signals: Any = _module(f"{PACKAGE}.signals")
_json: Any = _module("django.utils.json" if PACKAGE == "django.tasks" else "django_tasks.utils")

BaseTaskBackend: Any = _module(f"{PACKAGE}.backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
DEFAULT_QUEUE: Final[str] = _base.DEFAULT_TASK_QUEUE_NAME
DEFAULT_BACKEND: Final[str] = _base.DEFAULT_TASK_BACKEND_ALIAS
task_backends: Any = _module(PACKAGE).task_backends

# The first releases of the backport used a different suffix.
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist

task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished

normalize_json: Any = _json.normalize_json
