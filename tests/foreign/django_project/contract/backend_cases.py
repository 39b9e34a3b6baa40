"""The contract of a backend, on PostgreSQL and on SQLite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Queue
from typing import Any, ClassVar
from unittest import TestCase

from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from contract import tasks
from everwork.django import EverworkBackend
from everwork.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from everwork.django.workers import WorkerChoice, make_worker
from shop.models import Order

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
WAIT_S = 30
_workers: dict[str, Any] = {}


def worker(alias: str) -> Any:
    """The worker of a backend in this process."""
    if alias not in _workers:
        _workers[alias] = make_worker(WorkerChoice(alias))
    return _workers[alias]


def drain(alias: str) -> None:
    """Run what is due."""
    while worker(alias).sync.run_once().ran:
        pass


@contextmanager
def received(signal: Any) -> Iterator[Queue[Any]]:
    """What a signal brings inside this context."""
    inbox: Queue[Any] = Queue()

    def receive(**given: Any) -> None:
        inbox.put((given["sender"], given["task_result"].id, given["task_result"].status))

    signal.connect(receive)
    try:
        yield inbox
    finally:
        signal.disconnect(receive)


def brought(inbox: Queue[Any], *ids: str) -> set[Any]:
    """What a signal brings for these results; one of an earlier test may come late, and is left out."""
    found: set[Any] = set()
    while len(found) < len(ids):
        one = inbox.get(timeout=WAIT_S)
        if one[1] in ids:
            found.add(one)
    return found


class Contract:
    """What every backend promises; the subclasses say where."""

    alias: ClassVar[str]
    assertEqual: Any  # noqa: N815 - unittest's names
    assertRaises: Any  # noqa: N815
    assertIn: Any  # noqa: N815

    def setUp(self) -> None:
        tasks.ran.clear()

    @property
    def database(self) -> str:
        return "lite" if self.alias == "lite" else "default"

    def on(self, task: Any, **options: Any) -> Any:
        return task.using(backend=self.alias, **options)

    # Enqueue ---------------------------------------------------------------------------------------------

    def test_the_backend_supports_everything(self) -> None:
        backend = task_backends[self.alias]
        flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
        self.assertEqual([getattr(backend, flag) for flag in flags], [True] * 4)

    def test_an_enqueued_task_is_ready_and_knows_its_arguments(self) -> None:
        before = timezone.now()
        result = self.on(tasks.add).enqueue(1, b=(2, 3))
        self.assertEqual((result.status, result.args, result.kwargs), (READY, [1], {"b": [2, 3]}))
        self.assertEqual((result.backend, result.attempts, result.errors), (self.alias, 0, []))
        self.assertEqual((result.started_at, result.finished_at, result.last_attempted_at), (None, None, None))
        assert before <= result.enqueued_at <= timezone.now()
        with self.assertRaises(ValueError):
            _ = result.return_value
        found = self.on(tasks.add).get_result(result.id)
        self.assertEqual((found.status, found.args, found.kwargs), (READY, [1], {"b": [2, 3]}))
        self.assertEqual(found.task, self.on(tasks.add))
        self.cancel(result)

    def test_arguments_that_are_no_json_are_refused(self) -> None:
        with received(task_enqueued) as inbox:
            for value in (object(), datetime.now(UTC), {1, 2}):
                with self.assertRaises(TypeError):
                    self.on(tasks.add).enqueue(value)
        self.assertEqual(inbox.qsize(), 0)

    def test_a_task_that_cannot_be_is_refused_when_it_is_made(self) -> None:
        for options in (
            {"priority": 101},
            {"queue_name": "unknown"},
            {"run_after": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
            {"max_attempts": 0},
            {"dedupe_key": ""},
        ):
            with self.assertRaises(InvalidTask):
                self.on(tasks.add, **options)

    def test_an_unknown_result_does_not_exist(self) -> None:
        for name in ("nonsense", "0", "-1", "999999999", "9" * 40, ""):
            with self.assertRaises(TaskResultDoesNotExist):
                task_backends[self.alias].get_result(name)

    def test_a_job_that_is_no_task_does_not_exist(self) -> None:
        backend = task_backends[self.alias]
        for type in ("mail-send", "contract.tasks.nothing", "contract.tasks.Broken"):
            key = backend.app.sync.enqueue(type)
            with self.assertRaises(TaskResultDoesNotExist):
                backend.get_result(str(key))
            backend.app.sync.cancel(key)

    def test_a_result_of_another_task_is_refused(self) -> None:
        result = self.on(tasks.add).enqueue(1)
        with self.assertRaises(type(_mismatch())):
            self.on(tasks.fail).get_result(result.id)
        self.cancel(result)

    def test_a_deduplicated_task_is_the_earlier_one(self) -> None:
        task = self.on(tasks.add, dedupe_key="once")
        with received(task_enqueued) as inbox:
            first, second = task.enqueue(1), task.enqueue(2)
        self.assertEqual((second.id, second.args, inbox.qsize()), (first.id, [1], 1))
        self.cancel(first)

    # Run ---------------------------------------------------------------------------------------------------

    def test_a_task_runs_and_its_value_is_kept(self) -> None:
        result = self.on(tasks.add).enqueue(2, b=3)
        drain(self.alias)
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.is_finished), (SUCCESSFUL, 5, True))
        self.assertEqual((result.attempts, len(result.worker_ids), result.errors), (1, 1, []))
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at

    def test_a_task_that_raises_has_failed_with_its_error(self) -> None:
        result = self.on(tasks.fail).enqueue("too bad")
        drain(self.alias)
        result.refresh()
        self.assertEqual((result.status, result.attempts, len(result.errors)), (FAILED, 1, 1))
        self.assertIn("too bad", result.errors[0].traceback)
        self.assertEqual(result.errors[0].exception_class, tasks.Broken)
        with self.assertRaises(ValueError):
            _ = result.return_value

    def test_a_retried_task_finishes_once(self) -> None:
        with received(task_started) as started, received(task_finished) as finished:
            result = self.on(tasks.twice).enqueue()
            drain(self.alias)
            self.assertEqual(brought(finished, result.id), {(EverworkBackend, result.id, SUCCESSFUL)})
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), (SUCCESSFUL, "done", 2))
        self.assertEqual([one.exception_class for one in result.errors], [tasks.Broken])
        self.assertEqual([sum(one[1] == result.id for one in inbox.queue) for inbox in (started, finished)], [2, 0])

    def test_a_coroutine_runs_with_its_own_connection(self) -> None:
        result = self.on(tasks.add_async).enqueue(1, 2)
        drain(self.alias)
        result.refresh()
        self.assertEqual(result.return_value, 3 + Order.objects.count())

    def test_everything_can_be_awaited(self) -> None:
        async def go() -> Any:
            result = await self.on(tasks.add).aenqueue(20, b=2)
            await asyncio.to_thread(drain, self.alias)
            await result.arefresh()
            return await self.on(tasks.add).aget_result(result.id), result

        found, result = asyncio.run(go())
        self.assertEqual((found.return_value, result.return_value), (22, 22))

    def test_a_task_gets_its_context(self) -> None:
        result = self.on(tasks.describe).enqueue("hello")
        drain(self.alias)
        result.refresh()
        self.assertEqual(result.return_value, {"word": "hello", "attempt": 1, "id": result.id})

    def test_a_value_that_is_no_json_fails_the_task_without_a_retry(self) -> None:
        result = self.on(tasks.unstorable, max_attempts=5).enqueue()
        drain(self.alias)
        result.refresh()
        self.assertEqual((result.status, tasks.ran), (FAILED, ["unstorable"]))
        self.assertEqual(result.errors[0].exception_class, TypeError)
        self.assertIn("Unsupported type", result.errors[0].traceback)

    def test_a_cancelled_task_has_failed(self) -> None:
        result = self.on(tasks.add).enqueue(1)
        self.cancel(result)
        result.refresh()
        self.assertEqual((result.status, result.attempts), (FAILED, 0))

    def test_a_higher_priority_runs_first(self) -> None:
        for priority in (-100, 0, 100, 5):
            self.on(tasks.add, priority=priority).enqueue(priority)
        while worker(self.alias).sync.run_once(1).ran:
            pass
        self.assertEqual(tasks.ran, ["100+0", "5+0", "0+0", "-100+0"])

    def test_a_task_waits_for_its_time(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        due = timezone.now() - timedelta(seconds=1)
        waiting, running = (self.on(tasks.add, run_after=at).enqueue(1) for at in (later, due))
        drain(self.alias)
        waiting.refresh()
        running.refresh()
        self.assertEqual((waiting.status, running.status), (READY, SUCCESSFUL))
        self.assertEqual(task_backends[self.alias].get_result(waiting.id).task.run_after, later)
        self.cancel(waiting)

    def test_without_time_zones_times_are_naive(self) -> None:
        with override_settings(USE_TZ=False):
            later = timezone.now() + timedelta(hours=1)
            result = self.on(tasks.add, run_after=later).enqueue(1)
            found = task_backends[self.alias].get_result(result.id)
            self.assertEqual((found.task.run_after, found.enqueued_at.tzinfo), (later, None))
            job = task_backends[self.alias].app.sync.get(int(result.id))
            assert abs(job.run_at_ms / 1000 - later.astimezone(UTC).timestamp()) < 7_200
            self.cancel(result)

    def test_each_queue_is_a_type_of_its_own(self) -> None:
        result = self.on(tasks.add, queue_name="high").enqueue(1)
        backend = task_backends[self.alias]
        self.assertEqual(backend.app.sync.get(int(result.id)).type, "contract.tasks.add@high")
        self.assertEqual(backend.get_result(result.id).task.queue_name, "high")
        drain(self.alias)
        result.refresh()
        self.assertEqual(result.status, SUCCESSFUL)

    # Signals -----------------------------------------------------------------------------------------------

    def test_signals_say_what_happens_to_a_task(self) -> None:
        with received(task_enqueued) as enqueued, received(task_started) as started, received(task_finished) as ended:
            good, bad = self.on(tasks.add).enqueue(1), self.on(tasks.fail).enqueue()
            drain(self.alias)
            finished = brought(ended, good.id, bad.id)
        self.assertEqual(finished, {(EverworkBackend, good.id, SUCCESSFUL), (EverworkBackend, bad.id, FAILED)})
        self.assertEqual({enqueued.get_nowait()[1:] for _ in range(2)}, {(good.id, READY), (bad.id, READY)})
        self.assertEqual({started.get_nowait()[2] for _ in range(2)}, {RUNNING})

    def test_a_task_that_times_out_has_finished(self) -> None:
        with received(task_finished) as ended:
            result = self.on(tasks.hang, timeout=0.05).enqueue()
            drain(self.alias)
            self.assertEqual(brought(ended, result.id), {(EverworkBackend, result.id, FAILED)})
        result.refresh()
        self.assertEqual([one.exception_class for one in result.errors], [TimeoutError])

    def test_a_receiver_that_raises_fails_no_task(self) -> None:
        def explode(**_: Any) -> None:
            raise RuntimeError("a receiver is broken")

        signals = (task_enqueued, task_started, task_finished)
        for signal in signals:
            signal.connect(explode)
        try:
            result = self.on(tasks.add).enqueue(1)
            drain(self.alias)
        finally:
            for signal in signals:
                signal.disconnect(explode)
        result.refresh()
        self.assertEqual((result.status, result.attempts), (SUCCESSFUL, 1))

    # Transactions ------------------------------------------------------------------------------------------

    def test_a_rollback_leaves_neither_row_nor_job(self) -> None:
        before = Order.objects.using(self.database).count()
        with self.assertRaises(ZeroDivisionError), transaction.atomic(using=self.database):
            Order.objects.using(self.database).create(email="a@example.org", amount=1)
            result = self.on(tasks.add).enqueue(1)
            raise ZeroDivisionError
        self.assertEqual(Order.objects.using(self.database).count(), before)
        with self.assertRaises(TaskResultDoesNotExist):
            task_backends[self.alias].get_result(result.id)

    def test_a_commit_creates_row_and_job_and_a_savepoint_only_its_own(self) -> None:
        with transaction.atomic(using=self.database):
            kept = self.on(tasks.add).enqueue(1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic(using=self.database):
                undone = self.on(tasks.add).enqueue(2)
                raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            undone.refresh()  # Before anything else runs: on SQLite, the next job gets its id.
        drain(self.alias)
        kept.refresh()
        self.assertEqual((kept.status, tasks.ran), (SUCCESSFUL, ["1+0"]))

    def test_a_broken_transaction_takes_no_job(self) -> None:
        with transaction.atomic(using=self.database):
            transaction.set_rollback(True, using=self.database)
            with self.assertRaises(transaction.TransactionManagementError):
                self.on(tasks.add).enqueue(1)

    def test_a_task_can_complete_in_its_own_transaction(self) -> None:
        with received(task_finished) as ended:
            result = self.on(tasks.book, max_attempts=5).enqueue(self.database, f"{self.alias}@example.org")
            drain(self.alias)
            self.assertEqual(brought(ended, result.id), {(EverworkBackend, result.id, SUCCESSFUL)})
        result.refresh()
        self.assertEqual((result.status, result.attempts), (SUCCESSFUL, 1))
        self.assertEqual(Order.objects.using(self.database).filter(email=f"{self.alias}@example.org").count(), 1)

    # Threads -----------------------------------------------------------------------------------------------

    def test_the_backends_of_all_threads_share_one_application(self) -> None:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(task_backends[self.alias]))
        thread.start()
        thread.join()
        assert found[0] is not task_backends[self.alias]
        assert found[0].app is task_backends[self.alias].app

    def cancel(self, result: Any) -> None:
        task_backends[self.alias].app.sync.cancel(int(result.id))


class PostgresCase(Contract, TestCase):
    alias = "default"


class SqliteCase(Contract, TestCase):
    alias = "lite"

    def test_a_schedule_creates_tasks(self) -> None:
        while not tasks.ticks:
            drain(self.alias)


def _mismatch() -> Exception:
    from everwork.django import compat  # noqa: PLC0415 - only here

    mismatch: Exception = compat._exceptions.TaskResultMismatch()
    return mismatch
