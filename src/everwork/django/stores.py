"""One `Everwork` per store and process, shared by the backends of all threads, and the declared tasks."""

from __future__ import annotations

import threading
from typing import Any, Final

from django.utils.module_loading import import_string

from everwork.app.app import Everwork
from everwork.django.compat import Task, task_backends
from everwork.django.options import MEMORY
from everwork.logs import get_logger

log = get_logger("everwork")

_guard: Final = threading.Lock()
_applications: Final[dict[tuple[str, str], Everwork]] = {}
_tasks: Final[dict[str, Any]] = {}
_prepared: Final[set[str]] = set()
"""Stores whose tables have already been created, because Django announces migrations once per application."""
_apart: Final[set[tuple[str, str]]] = set()
"""Stores found to be in another database, each with the name of Django's database."""


def application(alias: str, url: str) -> Everwork:
    """The application of a backend, shared by all threads: Django creates a backend in each of them."""
    found = _applications.get((alias, url))
    if found is None:
        with _guard:
            found = _applications.get((alias, url)) or _applications.setdefault((alias, url), Everwork(url))
    return found


def close_all() -> None:
    """Close every application of this process; each opens again on next use."""
    with _guard:
        closing = list(_applications.values())
        _applications.clear()
        _prepared.clear()
        _apart.clear()
    for one in closing:
        one.sync.close()


def is_apart(url: str, database: str) -> bool:
    """Whether a store is known not to be in the database with this name."""
    return (url, database) in _apart


def note_apart(url: str, database: str, alias: str) -> None:
    """Remember for all threads that a store is in another database, and warn once: `manage.py check` cannot tell."""
    if not is_apart(url, database):
        _apart.add((url, database))
        log.warning(
            "task created immediately, not in the transaction: jobs are stored in another database",
            backend=alias,
            instead="transaction.on_commit(partial(task.enqueue, ...))",
        )


def prepare(database: str) -> None:
    """Create the tables of every store that is in this Django database, or bring them up to date."""
    from everwork.django.backend import EverworkBackend  # noqa: PLC0415 - it imports this module

    for backend in task_backends.all():
        if not isinstance(backend, EverworkBackend) or not backend.is_in_database(database):
            continue
        url = backend.checked_options.store_url()
        if url not in _prepared and url != MEMORY:
            # Close the store again; otherwise, a test runner could not drop its database.
            application = Everwork(url)
            application.sync.open()
            application.sync.close()
            _prepared.add(url)


# Tasks ------------------------------------------------------------------------------------------------------


def remember(task: Any) -> None:
    """Remember a task. The first task with a given path is the one that `@task` created."""
    _tasks.setdefault(task.module_path, task)


def known_tasks() -> dict[str, Any]:
    """Every task that was declared in this process, by its path."""
    return dict(_tasks)


def find_task(path: str) -> Any:
    """The task with this path, imported if needed; None if there is none."""
    if path not in _tasks and "." in path:
        try:
            found = import_string(path)
        except ImportError:
            return None
        if isinstance(found, Task):
            remember(found)
    return _tasks.get(path)
