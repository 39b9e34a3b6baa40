"""The backend for TASKS: enqueues Django's tasks as jobs and reads their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core import checks as django_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from everwork.app.app import Everwork
from everwork.app.handle import JobKey
from everwork.codec.new_job import new_job
from everwork.core import checks
from everwork.django import results, stores
from everwork.django.compat import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from everwork.django.options import Options
from everwork.django.task import EverworkTask, job_options, type_of
from everwork.engines.own_connection import OtherStore
from everwork.exceptions import EverworkError, InvalidInput, JobNotFound


class EverworkBackend(BaseTaskBackend):
    """Runs Django's tasks as Everwork jobs; see docs/how-to/django.md for its OPTIONS."""

    task_class = EverworkTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._checked: Options | None = None

    @property
    def checked_options(self) -> Options:
        """The validated OPTIONS; invalid options raise here and are reported by `manage.py check`."""
        if self._checked is None:
            self._checked = Options.of(self.alias, self.options)
        return self._checked

    @property
    def app(self) -> Everwork:
        """The application that all threads of this process share."""
        return stores.application(self.alias, self.checked_options.store_url())

    def is_in_database(self, alias: str) -> bool:
        """Whether the jobs are stored in this Django database, according to the settings."""
        options = self.checked_options
        return options.database == alias and options.joins_transactions() is True

    # Tasks ---------------------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """Refuse a task that cannot run. Django calls this when a task is declared, so it makes no connections."""
        super().validate_task(task)
        try:
            new_job(type_of(task.module_path, task.queue_name), {}, **job_options(task))
        except InvalidInput as error:
            raise InvalidTask(str(error)) from None
        if "@" in task.queue_name or not task.queue_name:
            raise InvalidTask(f"queue_name: must be a string without '@', not {checks.shown(task.queue_name)}")
        stores.remember(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Create a job, as part of the current transaction if that is on the database that holds the jobs."""
        self.validate_task(task)
        variables = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        key = self._create(type_of(task.module_path, task.queue_name), variables, self._options_of(task))
        if key.deduplicated and (found := self._result(key)) is not None:
            return found
        result = results.new_result(task, self.alias, key, variables["args"], variables["kwargs"])
        # An error in a receiver must not look as if the task had not been enqueued.
        task_enqueued.send_robust(type(self), task_result=result)
        return result

    def _options_of(self, task: Any) -> dict[str, Any]:
        options = job_options(task)
        if "retry" not in options:
            options.setdefault("max_attempts", self.checked_options.max_attempts)
        options["priority"] = task.priority
        if task.run_after is not None:
            due = results.aware(task.run_after)
            options |= {"run_at": due, "headers": {results.RUN_AFTER: due.isoformat()}}
        return options

    def _create(self, type: str, variables: dict[str, Any], options: dict[str, Any]) -> JobKey:
        """Create the job in Django's transaction if there is one and the jobs are in its database; otherwise create
        it immediately.
        """
        connection = self._transaction()
        if connection is not None:
            try:
                return _enqueue(self.app, type, variables, options, tx=connection)
            except OtherStore as error:
                if self.checked_options.joins_transactions():
                    raise ImproperlyConfigured(f"everwork: run `manage.py migrate` first: {error.problem}") from None
                stores.note_apart(self.checked_options.store_url(), connection.settings_dict["NAME"], self.alias)
        return _enqueue(self.app, type, variables, options, tx=None)

    def _transaction(self) -> Any:
        """Django's connection, if it is in a transaction that a job can join; else None."""
        options = self.checked_options
        connection, joins = connections[options.database], options.joins_transactions()
        if joins is False or stores.is_apart(options.store_url(), connection.settings_dict["NAME"]):
            return None
        if not connection.in_atomic_block and _is_autocommit(connection):
            return None
        connection.validate_no_broken_transaction()
        if joins is None:
            self.app.sync.open()  # An open engine compares the ids of the two stores.
        return connection

    # Results -------------------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """The result of a task in its current state."""
        found = self._result(result_id)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def _result(self, result_id: object) -> Any:
        try:
            key = checks.job_key(result_id)
            job, history = self.app.sync.get(key), self.app.sync.history(key)
        except (InvalidInput, JobNotFound):
            return None
        return results.result_of(job, history, self.alias)

    # Checks --------------------------------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> Iterator[Any]:  # noqa: ARG002 - Django's signature
        """The problems that `manage.py check` reports. Makes no connections."""
        try:
            options, _ = self.checked_options, self.app
            joins = options.joins_transactions()
        except (ImproperlyConfigured, EverworkError) as error:
            yield django_checks.Error(str(error), id="everwork.E001", obj=f"TASKS[{self.alias!r}]")
            return
        yield from _warnings(options, joins, obj=f"TASKS[{self.alias!r}]")


def _warnings(options: Options, joins: bool | None, obj: str) -> Iterator[Any]:
    """Settings that work, but possibly not as expected."""
    where, database = f"DATABASES[{options.database!r}]", connections[options.database]
    for alias in _atomic_requests_elsewhere(options, joins):
        remedy = (
            "Remove OPTIONS['url'] to keep the jobs in the same database"
            if alias == options.database
            else f"Set OPTIONS['database'] to {alias!r} to keep the jobs in that database"
        )
        yield django_checks.Warning(
            f"ATOMIC_REQUESTS is on for DATABASES[{alias!r}], but the jobs are in another store: a task that a "
            "request enqueues may run before the request commits, or even if it is rolled back.",
            hint=f"{remedy}, or enqueue with transaction.on_commit(partial(task.enqueue, ...)).",
            id="everwork.W001",
            obj=obj,
        )
    if joins and database.vendor == "sqlite" and not database.settings_dict["OPTIONS"].get("transaction_mode"):
        yield django_checks.Warning(
            f"Transactions of {where} begin without the write lock: enqueuing in a transaction that starts with a "
            "read can fail with 'database is locked'.",
            hint='Set "OPTIONS": {"transaction_mode": "IMMEDIATE"} for the database.',
            id="everwork.W002",
            obj=obj,
        )


def _atomic_requests_elsewhere(options: Options, joins: bool | None) -> Iterator[str]:
    """The databases whose requests run in transactions that tasks do not join."""
    for alias in connections:
        is_joined = alias == options.database and joins is not False
        if connections[alias].settings_dict["ATOMIC_REQUESTS"] and not is_joined:
            yield alias


def _is_autocommit(connection: Any) -> bool:
    """Whether a connection outside atomic blocks is in autocommit mode; if it is not open yet, by its settings."""
    if connection.connection is not None:
        return bool(connection.autocommit)
    if connection.settings_dict["AUTOCOMMIT"]:
        return True
    connection.ensure_connection()
    return False


def _enqueue(app: Everwork, type: str, variables: dict[str, Any], options: dict[str, Any], *, tx: object) -> JobKey:
    return app.sync.using(**options, tx=tx).enqueue(type, variables)
