"""The workers of a Django project: `manage.py everwork`, or `everwork worker everwork.django:worker`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from everwork.app.app import Everwork
from everwork.core import checks
from everwork.core.limits import CONCURRENCY_MAX, PROCESSES_MAX
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy
from everwork.django.backend import EverworkBackend
from everwork.django.compat import DEFAULT_BACKEND, DEFAULT_QUEUE, task_backends
from everwork.django.options import Options
from everwork.django.running import TaskRunner, is_coroutine
from everwork.django.stores import find_task, known_tasks
from everwork.django.task import type_of
from everwork.exceptions import BadConfiguration

CONCURRENCY_DEFAULT: Final = 4
PREFIX: Final = "EVERWORK_DJANGO_"
POOLS: Final = ("django", "django-async")
"""The two pools: plain functions share the concurrency of one, and async functions share that of the other."""


class WorkerChoice(NamedTuple):
    """What a worker runs: the tasks of a backend, from all queues or some, and its concurrency."""

    backend: str = DEFAULT_BACKEND
    queues: tuple[str, ...] = ()
    concurrency: int = CONCURRENCY_DEFAULT

    @classmethod
    def checked(cls, backend: str, queues: Sequence[str], concurrency: object, processes: object = 1) -> WorkerChoice:
        """The validated choice; raises if the project's settings or a limit do not allow it."""
        found = _backend(backend)
        for queue in queues:
            if found.queues and queue not in found.queues:
                known = ", ".join(sorted(found.queues))
                raise ImproperlyConfigured(
                    f"everwork: TASKS[{backend!r}] has no queue {queue!r}; known QUEUES: {known}"
                )
        checks.whole_number("processes", processes, 1, PROCESSES_MAX)
        return cls(backend, tuple(queues), checks.whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX))

    @classmethod
    def from_environment(cls) -> WorkerChoice:
        """The choice set in the environment variables."""
        queues = os.environ.get(f"{PREFIX}QUEUES", "")
        return cls.checked(
            os.environ.get(f"{PREFIX}BACKEND", DEFAULT_BACKEND),
            [name.strip() for name in queues.split(",") if name.strip()],
            checks.typed(os.environ.get(f"{PREFIX}CONCURRENCY", str(CONCURRENCY_DEFAULT))),
        )

    def environment(self) -> dict[str, str]:
        """The environment variables that pass this choice to another process."""
        values = {"BACKEND": self.backend, "QUEUES": ",".join(self.queues), "CONCURRENCY": str(self.concurrency)}
        return {f"{PREFIX}{name}": value for name, value in values.items()}


def worker() -> Everwork:
    """Return the application whose workers run the project's tasks, configured by environment variables.

    DJANGO_SETTINGS_MODULE names the settings. EVERWORK_DJANGO_BACKEND, EVERWORK_DJANGO_QUEUES (separated by commas) and
    EVERWORK_DJANGO_CONCURRENCY correspond to the options of `manage.py everwork`.
    """
    try:
        if not apps.ready:
            django.setup()
        return make_worker(WorkerChoice.from_environment())
    except ImproperlyConfigured as error:
        raise BadConfiguration(str(error)) from None


def make_worker(choice: WorkerChoice) -> Everwork:
    """The application of a backend, with all tasks of the project declared in it."""
    backend = _backend(choice.backend)
    options = backend.checked_options
    autodiscover_modules("tasks")
    for module in options.modules:
        import_module(module)
    schedules = _schedules(options)
    runner, app = TaskRunner(backend), backend.app
    for path, task in known_tasks().items():
        for queue in _queues_of(backend, task, choice.queues):
            if type_of(path, queue) in app.functions:
                continue  # Already declared by an earlier call in this process, as in tests.
            cron = schedules.pop(path, None) if queue == task.queue_name else None
            function = app.job(
                type_of(path, queue),
                concurrency=choice.concurrency,
                timeout=options.timeout,
                cron=cron,
                retry=DEFAULT_POLICY if cron is None else _retry(task, options),
            )(runner.run_async if is_coroutine(task) else runner.run)
            function.pool = POOLS[is_coroutine(task)]
            function.on_end = runner.ended
    return app


def _backend(alias: str) -> EverworkBackend:
    if alias not in task_backends.settings:
        raise ImproperlyConfigured(f"everwork: TASKS has no {alias!r}")
    backend = task_backends[alias]
    if not isinstance(backend, EverworkBackend):
        raise ImproperlyConfigured(f"everwork: TASKS[{alias!r}] must have BACKEND everwork.django.EverworkBackend")
    return backend


def _queues_of(backend: EverworkBackend, task: Any, chosen: Sequence[str]) -> Iterator[str]:
    """The queues of a task's jobs: the chosen ones, or all known ones."""
    known = dict.fromkeys(chosen or (*sorted(backend.queues or {DEFAULT_QUEUE}), task.queue_name))
    yield from (queue for queue in known if not backend.queues or queue in backend.queues)


def _schedules(options: Options) -> dict[str, Any]:
    """The schedules by task path; each task must exist and must not require arguments."""
    for path in options.cron:
        task = find_task(path)
        where = f"OPTIONS['cron'][{path!r}]"
        if task is None:
            raise ImproperlyConfigured(f"everwork: {where}: there is no such task")
        try:
            inspect.signature(task.func).bind(*[None] * task.takes_context)
        except TypeError as error:
            raise ImproperlyConfigured(f"everwork: {where}: scheduled tasks get no arguments: {error}") from None
    return {find_task(path).module_path: schedule for path, schedule in options.cron.items()}


def _retry(task: Any, options: Options) -> RetryPolicy:
    own: RetryPolicy | None = getattr(task, "retry", None)
    return own or RetryPolicy(max_attempts=getattr(task, "max_attempts", None) or options.max_attempts)
