"""A real worker process on PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import TestCase

import django
from django.db import connection, transaction

from contract import tasks
from everwork.django import stores
from everwork.django.compat import TaskResultStatus, task_backends
from shop.models import Order
from shop.tasks import confirm

MANAGE = Path(sys.modules["shop"].__path__[0]).parent / "manage.py"
PROCESSES = "1" if django.VERSION >= (6, 0) else "2"
"""Both ways are tested, one with each Django: processes are slow to start."""
WAIT_S = 60


def until(found: Callable[[], object], wanted: object) -> None:
    """Ask again until the answer is the wanted one."""
    ends = time.monotonic() + WAIT_S
    while (last := found()) != wanted:
        assert time.monotonic() < ends, f"still {last}, not {wanted}"


class WorkerCase(TestCase):
    """`manage.py everwork`."""

    def setUp(self) -> None:
        command = [sys.executable, str(MANAGE), "everwork", "--concurrency", "2", "--processes", PROCESSES]
        self.worker = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end)

    def end(self) -> None:
        self.worker.kill()
        self.worker.communicate()

    def test_a_worker_survives_lost_connections_and_leaves_none_behind(self) -> None:
        with transaction.atomic():
            order = Order.objects.create(email="ada@example.org", amount="9.90")
            before = confirm.enqueue(order.pk)
        awaited = tasks.add_async.enqueue(1, 2)
        self.assertEqual(_value(before), "ada@example.org")
        self.assertEqual(_value(awaited), 3 + Order.objects.count())
        order.refresh_from_db()
        assert order.confirmed_at is not None
        until(lambda: _connections("django"), 1)  # This one: those of the tasks are closed.
        stores.close_all()  # The connections of this process are not to be lost.
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        after = confirm.enqueue(order.pk)
        self.assertEqual(_value(after), "ada@example.org")
        self.worker.send_signal(signal.SIGTERM)
        _, log = self.worker.communicate(timeout=WAIT_S)
        self.assertEqual(self.worker.returncode, 0, log)
        after.refresh()
        self.assertEqual((after.status, after.attempts), (TaskResultStatus.SUCCESSFUL, 1))
        stores.close_all()
        until(lambda: _connections("%"), 1)


def _value(result: Any) -> Any:
    """What a task returns, as soon as it does."""
    return task_backends["default"].app.sync.result(int(result.id), WAIT_S)


def _connections(name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
            [name],
        )
        [found] = cursor.fetchone()
    return int(found)
