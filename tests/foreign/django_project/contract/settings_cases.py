"""What depends on the settings of a project."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import TestCase
from unittest.mock import patch

from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from contract import tasks
from everwork import Everwork
from everwork.django import EverworkBackend, job_context, stores, worker
from everwork.django.compat import TaskResultDoesNotExist, TaskResultStatus, task_backends
from everwork.django.options import Options
from everwork.django.workers import WorkerChoice
from everwork.exceptions import BadConfiguration


def changed_database(**settings: Any) -> Any:
    """The default database with other settings, inside this context."""
    return patch.dict(connections["default"].settings_dict, settings)


@contextmanager
def another_file() -> Iterator[str]:
    """The SQLite database in another file, which is empty."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(connections["lite"].settings_dict, NAME=f"{folder}/a.db"),
    ):
        connections["lite"].close()
        try:
            yield f"{folder}/a.db"
        finally:
            connections["lite"].close()


class ConfigurationCase(TestCase):
    """Backends that are configured in other ways."""

    def test_the_same_database_is_recognised_by_its_store(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            result = tasks.add.using(backend="same").enqueue(1)
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            result.refresh()

    def test_another_store_takes_the_task_at_once(self) -> None:
        for backend in ("apart", "other"):
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                result = tasks.add.using(backend=backend).enqueue(1)
                raise ZeroDivisionError
            result.refresh()
            self.assertEqual(result.status, TaskResultStatus.READY)

    def test_a_transaction_that_cannot_be_joined_is_warned_of_once(self) -> None:
        stores.close_all()
        with self.assertLogs("everwork", "WARNING") as logged, transaction.atomic():
            for _ in range(2):
                apart = EverworkBackend("other", {"OPTIONS": {"url": os.environ["CONTRACT_OTHER"]}})
                apart.enqueue(tasks.add, [1], {})
        [warning] = logged.output
        assert "transaction.on_commit(partial(" in warning, warning

    def test_a_store_without_tables_asks_for_the_migration(self) -> None:
        with another_file() as path:
            for options in ({}, {"url": f"sqlite:///{path}"}):
                empty = EverworkBackend("empty", {"OPTIONS": {"database": "lite"} | options})
                for _ in range(2):
                    with (
                        self.assertRaisesRegex(ImproperlyConfigured, "manage.py migrate"),
                        transaction.atomic(using="lite"),
                    ):
                        empty.enqueue(tasks.add, [1], {})

    def test_a_known_dedupe_key_is_found_in_a_transaction_of_a_process_that_has_not_opened_the_store(self) -> None:
        with another_file():
            stores.prepare("lite")
            fresh = EverworkBackend("lite", {"OPTIONS": {"database": "lite"}})
            with transaction.atomic(using="lite"):
                first, second = (fresh.enqueue(tasks.add.using(dedupe_key="k"), [1], {}) for _ in range(2))
            self.assertEqual(first.id, second.id)
            self.assertEqual(fresh.get_result(first.id).args, [1])
            fresh.app.sync.close()

    def test_a_database_without_autocommit_is_in_a_transaction_before_its_first_statement(self) -> None:
        for alias in ("default", "lite"):
            connection = connections[alias]
            connection.close()
            with patch.dict(connection.settings_dict, AUTOCOMMIT=False):
                result = tasks.add.using(backend=alias).enqueue(1)
                connection.rollback()
                connection.close()
            with self.assertRaises(TaskResultDoesNotExist):
                result.refresh()

    def test_the_backends_number_of_attempts_holds_unless_the_task_has_its_own(self) -> None:
        for backend, options, attempts in (("same", {}, 2), ("default", {}, 1), ("default", {"max_attempts": 7}, 7)):
            with transaction.atomic():
                result = tasks.add.using(backend=backend, **options).enqueue(1)
            job = task_backends[backend].app.sync.get(int(result.id))
            self.assertEqual(job.max_attempts, attempts)
            task_backends[backend].app.sync.cancel(job.key)

    def test_checks_find_wrong_options(self) -> None:
        for options, problem in (
            ({"urls": "x"}, "'urls' is not an option"),
            ({"url": "mysql://localhost/x"}, "unknown scheme"),
            ({"database": "nowhere"}, "names 'nowhere', which is not in DATABASES"),
            ({"max_attempts": "many"}, "must be a whole number"),
            ({"cron": {"a.b": "every day"}}, "must be a cron expression"),
        ):
            backend = EverworkBackend("default", {"OPTIONS": options})
            [found] = list(backend.check())
            self.assertEqual(found.id, "everwork.E001")
            assert problem in found.msg, found.msg

    def test_checks_warn_of_requests_whose_tasks_are_elsewhere(self) -> None:
        with changed_database(ATOMIC_REQUESTS=True):
            apart = EverworkBackend("apart", {"OPTIONS": {"url": "redis://localhost"}})
            self.assertEqual([one.id for one in apart.check()], ["everwork.W001"])
            beside = EverworkBackend("beside", {"OPTIONS": {"database": "lite"}})
            [warning] = beside.check()
            self.assertEqual(warning.id, "everwork.W001")
            assert "DATABASES['default']" in warning.msg, warning.msg
            assert "OPTIONS['database']" in warning.hint, warning.hint
            self.assertEqual(list(EverworkBackend("joined", {"OPTIONS": {}}).check()), [])
        lite = EverworkBackend("lite", {"OPTIONS": {"database": "lite"}})
        with patch.dict(connections["lite"].settings_dict, OPTIONS={}):
            self.assertEqual([one.id for one in lite.check()], ["everwork.W002"])

    def test_the_url_of_a_store_is_that_of_its_database(self) -> None:
        for changes, url in (
            ({"HOST": "db", "PORT": 5433}, "postgresql://u:p%2F%40%3A@db:5433/shop"),
            ({"HOST": "a,b", "PORT": 5433}, "postgresql://u:p%2F%40%3A@/shop?host=a%2Cb&port=5433"),
            ({"HOST": "::1"}, "postgresql://u:p%2F%40%3A@[::1]/shop"),
            ({"HOST": "/run/pg", "PORT": "5"}, "postgresql://u:p%2F%40%3A@/shop?host=%2Frun%2Fpg&port=5"),
            ({"USER": "", "PASSWORD": ""}, "postgresql:///shop"),
            ({"PASSWORD": "", "OPTIONS": {"sslmode": "require", "pool": True}}, "postgresql://u@/shop?sslmode=require"),
            ({"PASSWORD": "", "OPTIONS": {"assume_role": "shop"}}, "postgresql://u@/shop?options=-c+role%3Dshop"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:/srv/a%20b.db?mode=rw"}, "sqlite:////srv/a%20b.db"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:x?mode=memory&cache=shared"}, "sqlite:///:memory:"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "/srv/a b.db"}, "sqlite:////srv/a%20b.db"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "sqlite:///:memory:"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file::memory:?cache=shared"}, "sqlite:///:memory:"),
        ):
            usual = {"NAME": "shop", "USER": "u", "PASSWORD": "p/@:", "HOST": "", "PORT": "", "OPTIONS": {}}
            with changed_database(**usual | changes):
                self.assertEqual(Options.of("default", {}).store_url(), url)
                Everwork(url)
        with changed_database(ENGINE="django.db.backends.mysql"), self.assertRaises(ImproperlyConfigured):
            Options.of("default", {}).store_url()

    def test_the_projects_checks_are_clean(self) -> None:
        self.assertEqual(run_checks(), [])

    def test_a_worker_says_what_is_wrong_with_it(self) -> None:
        for arguments, problem in (
            (("nowhere", [], 1), "TASKS has no 'nowhere'"),
            (("default", ["low"], 1), "has no queue 'low'; known QUEUES: default, high, mail"),
        ):
            with self.assertRaisesRegex(ImproperlyConfigured, problem):
                WorkerChoice.checked(*arguments)
        with self.assertRaisesRegex(ValueError, "concurrency"):
            WorkerChoice.checked("default", [], 0)

    def test_a_worker_is_chosen_by_the_environment(self) -> None:
        choice = WorkerChoice("same", ("high", "mail"), 3)
        with patch.dict(os.environ, choice.environment()):
            self.assertEqual(WorkerChoice.from_environment(), choice)
        with patch.dict(os.environ, EVERWORK_DJANGO_BACKEND="nowhere"), self.assertRaises(BadConfiguration):
            worker()

    def test_a_worker_can_be_asked_for_again_in_one_process(self) -> None:
        first = worker()
        self.assertIn("contract.tasks.add@mail", first.functions)
        self.assertIs(worker(), first)

    def test_outside_of_a_task_there_is_no_context(self) -> None:
        with self.assertRaises(BadConfiguration):
            job_context()
