"""Blocking creates by a caller that comes alone: in its own thread, with the same results and errors as before."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everwork import Everwork, RetryPolicy, Spool
from everwork.app import caller_engine
from everwork.app.caller_engine import NESTED, OPENS_AFTER, _CallerLoop
from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.engines.sqlite.store.loop_writer import LoopWriter
from everwork.exceptions import EngineBusy, EngineUnavailable
from everwork.service.service import JobService
from everwork.testing import rehearse
from tests.app.forks import in_child
from tests.app.waiting import DEADLINE_S, SOON_S, stop_thread, until_sync

pytestmark = pytest.mark.every_engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def app(url: str) -> Iterator[Everwork]:
    """An application without an event loop, whose callers have an engine of their own."""
    made = Everwork(url)
    assert enqueued(made) == list(range(1, OPENS_AFTER + 1))
    until_opened(made)
    yield made
    made.sync.close()


def enqueued(app: Everwork, jobs: int = OPENS_AFTER) -> list[int]:
    """The keys of jobs that are created one after the other."""
    return [int(app.sync.enqueue("work", number=number)) for number in range(jobs)]


def until_opened(app: Everwork) -> None:
    """Return when the callers' engine has been opened."""
    until_sync(lambda: opened(app) is not None and not app._host._caller_engine._lock.locked())


def assert_refused(app: Everwork) -> None:
    """Callers get no engine of their own, although they have made enough calls."""
    until_sync(lambda: app._host._caller_engine._not_before)
    assert opened(app) is None


def assert_refused_forever(app: Everwork) -> None:
    """Callers never get an engine of their own, so they do not ask for one again."""
    assert_refused(app)
    assert app._host._caller_engine._not_before == math.inf


def opened(app: Everwork) -> _CallerLoop | None:
    return app._host._caller_engine._opened


def loop_of(app: Everwork) -> _CallerLoop:
    loop = opened(app)
    assert loop is not None
    return loop


@contextmanager
def busy_engine(app: Everwork) -> Iterator[None]:
    """Meanwhile, the engine's thread answers no one."""
    over = threading.Event()
    app.loop.call_soon_threadsafe(over.wait, DEADLINE_S)
    yield
    over.set()


def count(app: Everwork) -> int:
    return len(list(app.sync.list()))


# In the caller's thread -------------------------------------------------------------------------------


def test_a_caller_that_comes_alone_needs_no_other_thread(app: Everwork) -> None:
    with busy_engine(app):
        assert enqueued(app, 3) == [OPENS_AFTER + 1, OPENS_AFTER + 2, OPENS_AFTER + 3]
        many = app.sync.enqueue_many([("work", {})] * 2)
    assert list(map(int, many)) == [OPENS_AFTER + 4, OPENS_AFTER + 5]
    assert app.sync.get(many[0]).type == "work"


def test_a_program_that_makes_few_calls_opens_one_engine(url: str) -> None:
    app = Everwork(url)
    enqueued(app, OPENS_AFTER - 1)
    assert opened(app) is None
    app.sync.close()


def test_a_caller_that_meets_another_one_uses_the_engine_s_thread(app: Everwork) -> None:
    with app._host._caller_engine._lock:
        assert enqueued(app, 1) == [OPENS_AFTER + 1]
        until = app._host._caller_engine._not_before
        assert until > 0
        app._host._caller_engine._not_before = until + DEADLINE_S
        assert enqueued(app, 1) == [OPENS_AFTER + 2]
    assert app._host._caller_engine._not_before == until + DEADLINE_S
    assert count(app) == OPENS_AFTER + 2


def test_a_crowd_of_threads_gets_its_own_keys(app: Everwork) -> None:
    barrier = threading.Barrier(16)

    def enqueue(thread: int) -> list[tuple[int, int]]:
        barrier.wait(DEADLINE_S)
        return [(app.sync.enqueue("count", number=thread * 100 + n), thread * 100 + n) for n in range(20)]

    with ThreadPoolExecutor(16) as threads:
        pairs = [pair for made in threads.map(enqueue, range(16)) for pair in made]
    found = {job.key: job.variables["number"] for job in app.sync.list(type="count")}
    assert found == {int(key): number for key, number in pairs}
    assert len(pairs) == len(found) == 320


def test_a_thread_continues_with_the_engine_of_one_that_has_ended(url: str) -> None:
    app = Everwork(url)
    for turn in range(3):
        keys: list[int] = []
        thread = threading.Thread(target=lambda keys=keys: keys.extend(enqueued(app)))
        thread.start()
        thread.join()
        assert keys == [turn * OPENS_AFTER + n + 1 for n in range(OPENS_AFTER)]
        until_opened(app)
    app.sync.close()


def test_in_a_thread_with_a_running_loop_the_engine_s_thread_is_used(app: Everwork) -> None:
    async def inside() -> list[int]:
        return enqueued(app, 2)

    assert asyncio.run(inside()) == [OPENS_AFTER + 1, OPENS_AFTER + 2]


def test_a_waiting_worker_is_notified_before_the_call_returns(app: Everwork) -> None:
    """The loop stops with the call, so nothing may be left to do in it."""
    ran = threading.Event()

    @app.job("ring")
    def ring() -> None:
        ran.set()

    workers = threading.Thread(target=app.run)
    workers.start()
    try:
        for _ in range(3):
            ran.clear()
            ring.sync.enqueue()
            assert not asyncio.all_tasks(loop_of(app).loop)
            assert ran.wait(DEADLINE_S)
    finally:
        stop_thread(app, workers)


# Where only the engine's thread may have an engine ------------------------------------------------------


def test_offline_mode_stays_in_the_engine_s_thread(url: str, tmp_path: Path) -> None:
    app = Everwork(url, offline=Spool(str(tmp_path / "spool.db")))
    enqueued(app)
    assert_refused_forever(app)
    app.sync.close()


def test_a_store_in_memory_has_one_engine() -> None:
    app = Everwork("sqlite:///:memory:")
    assert enqueued(app) == list(range(1, OPENS_AFTER + 1))
    assert_refused_forever(app)
    app.sync.close()


def test_an_application_on_a_stage_uses_the_stage_s_engine(app: Everwork) -> None:
    with rehearse(app):
        assert enqueued(app) == list(range(1, OPENS_AFTER + 1))
        assert_refused_forever(app)
    assert count(app) == OPENS_AFTER
    with busy_engine(app):
        assert enqueued(app, 1) == [OPENS_AFTER + 1]


def test_without_an_engine_of_their_own_callers_use_the_engine_s_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Everwork(url)
    app.sync.open()

    async def fail(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("too many connections")

    with monkeypatch.context() as patched:
        patched.setattr(JobService, "open", fail)
        assert enqueued(app) == list(range(1, OPENS_AFTER + 1))
        assert_refused(app)
        assert enqueued(app) == list(range(OPENS_AFTER + 1, 2 * OPENS_AFTER + 1))
    app._host._caller_engine._not_before = 0.0
    enqueued(app)
    until_opened(app)
    app.sync.close()


def test_an_unexpected_error_of_opening_is_logged_once(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Everwork(url)
    app.sync.open()

    async def fail(*_: Any, **__: Any) -> None:
        raise ArithmeticError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(JobService, "open", fail)
        for _ in range(3):
            app._host._caller_engine._not_before = 0.0
            enqueued(app)
            assert_refused(app)
    assert caplog.text.count("could not open an engine") == 1
    app.sync.close()


# Faults -------------------------------------------------------------------------------------------


class Lost:
    """The engine of the callers loses the answer to the next create, after the jobs have been created."""

    def __init__(self, app: Everwork) -> None:
        self._engine = loop_of(app).service._engine
        self._create = self._engine.create
        self.calls = 0

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        self.calls += 1
        created = await self._create(jobs)
        if self.calls == 1:
            raise EngineUnavailable("the connection was lost")
        return created


def lose_an_answer(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> Lost:
    lost = Lost(app)
    monkeypatch.setattr(loop_of(app).service._creates, "_flush", lost.create)
    return lost


def test_a_create_that_may_have_succeeded_is_not_repeated(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = lose_an_answer(app, monkeypatch)
    with pytest.raises(EngineUnavailable, match="the connection was lost"):
        app.sync.enqueue("work")
    assert (lost.calls, count(app)) == (1, OPENS_AFTER + 1)
    assert enqueued(app, 1) == [OPENS_AFTER + 2]


def test_a_create_with_a_dedupe_key_is_repeated(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = lose_an_answer(app, monkeypatch)
    key = app.sync.using(dedupe_key="once").enqueue("work")
    assert (int(key), lost.calls, count(app)) == (OPENS_AFTER + 1, 1, OPENS_AFTER + 1)


def test_after_a_pause_a_store_that_does_not_answer_is_left_to_the_engine_s_thread(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_engine, "TRUST_SECONDS", 0.0)
    monkeypatch.setattr(caller_engine, "ANSWER_SECONDS", 0.01)
    was = loop_of(app)

    async def never() -> int:
        await asyncio.Event().wait()
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(was.service, "now", never)
        assert enqueued(app, 1) == [OPENS_AFTER + 1]
    assert opened(app) is None
    assert was.loop.is_closed()


@pytest.mark.parametrize("within", ["a coroutine", "a callback"])
def test_after_an_interrupt_in_the_middle_of_a_call_the_next_one_works(
    app: Everwork, monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    was = loop_of(app)
    create = was.service._engine.create

    async def interrupted(jobs: Sequence[NewJob]) -> list[Created]:
        if within == "a coroutine":
            signal.raise_signal(signal.SIGINT)
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        return await create(jobs)

    monkeypatch.setattr(was.service._creates, "_flush", interrupted)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            app.sync.enqueue("work", number=0)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert was.loop.is_closed()
    keys = enqueued(app)
    assert keys == sorted(set(keys))
    until_opened(app)
    assert count(app) in (2 * OPENS_AFTER, 2 * OPENS_AFTER + 1)


class Interrupt(Exception):
    """What a time limit raises in the middle of a call, as RQ's `JobTimeoutException`."""


def raise_at_once(*_: object) -> None:
    raise Interrupt


@contextmanager
def alarm(handle: Callable[..., object] = raise_at_once) -> Iterator[None]:
    """SIGALRM raises an error, as the time limits of task queues do, or calls another handler."""
    handler = signal.signal(signal.SIGALRM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def ends_soon() -> Iterator[None]:
    """Interrupt a call that hangs, so that the test fails."""
    watching = threading.Timer(SOON_S, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    watching.start()
    try:
        yield
    finally:
        watching.cancel()


def interrupt_first(
    app: Everwork, monkeypatch: pytest.MonkeyPatch, within: str, interrupt: Callable[[], object]
) -> None:
    """Have the next create interrupted: in a coroutine, in a callback, or in the protocol of a connection."""
    service = loop_of(app).service
    create, ours, theirs = service._engine.create, *socket.socketpair()

    class Protocol(asyncio.Protocol):
        def data_received(self, _: bytes) -> None:
            interrupt()

    async def interrupted(jobs: Sequence[NewJob]) -> list[Created]:
        loop = asyncio.get_running_loop()
        if within == "a coroutine":
            interrupt()
        elif within == "a callback":
            loop.call_soon(interrupt)
            await asyncio.Event().wait()
        else:
            theirs.send(b"x")
            await loop.create_connection(Protocol, sock=ours)
            await asyncio.Event().wait()
        return await create(jobs)

    monkeypatch.setattr(service._creates, "_flush", interrupted)


@pytest.mark.parametrize("how", ["an error", "a signal"])
@pytest.mark.parametrize("within", ["a coroutine", "a callback", "a protocol"])
def test_an_error_that_interrupts_a_call_anywhere_reaches_its_caller(
    app: Everwork, monkeypatch: pytest.MonkeyPatch, within: str, how: str
) -> None:
    """asyncio only logs an error in a callback; the caller would wait forever, and every fork for the caller."""
    was = loop_of(app)
    interrupt = raise_at_once if how == "an error" else partial(signal.raise_signal, signal.SIGALRM)
    interrupt_first(app, monkeypatch, within, interrupt)
    with ends_soon(), alarm(), pytest.raises(Interrupt):
        app.sync.enqueue("work", number=0)
    assert was.loop.is_closed()
    assert not app._host._caller_engine._lock.locked()
    assert enqueued(app) == [OPENS_AFTER + n + 1 for n in range(OPENS_AFTER)]
    until_opened(app)


def test_an_interrupt_as_a_call_ends_is_not_lost(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job exists, but what interrupted the call must not be ignored."""
    was = loop_of(app)
    create = was.service._engine.create

    async def ending(jobs: Sequence[NewJob]) -> list[Created]:
        asyncio.get_running_loop().call_soon(raise_at_once)
        return await create(jobs)

    monkeypatch.setattr(was.service._creates, "_flush", ending)
    with pytest.raises(Interrupt):
        app.sync.enqueue("work")
    assert was.loop.is_closed()


def test_an_interrupt_of_a_transaction_in_the_callers_loop_reaches_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Everwork(f"sqlite:///{tmp_path}/jobs.db")
    enqueued(app)
    until_opened(app)
    run = LoopWriter._run_iteration

    def interrupted(writer: LoopWriter) -> None:
        if threading.current_thread() is threading.main_thread():
            writer._calls = []
            signal.raise_signal(signal.SIGALRM)
        run(writer)

    with monkeypatch.context() as patched:
        patched.setattr(LoopWriter, "_run_iteration", interrupted)
        with ends_soon(), alarm(), pytest.raises(Interrupt):
            app.sync.enqueue("work")
    assert enqueued(app, 1) == [OPENS_AFTER + 1]
    app.sync.close()


def test_after_an_interrupt_nothing_waits_for_a_deadline(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[object] = []
    wait = asyncio.wait

    async def watched(tasks: Any, **options: Any) -> object:
        done, late = await wait(tasks, **options)
        waited_for.extend(late)
        return done, late

    interrupt_first(app, monkeypatch, "a callback", raise_at_once)
    monkeypatch.setattr(asyncio, "wait", watched)
    with pytest.raises(Interrupt):
        app.sync.enqueue("work", number=0)
    assert not waited_for


def test_a_signal_handler_in_the_middle_of_a_call_does_not_wait_for_it(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server serves both calls; the transaction of a local store would never end before the handler."""
    service, errors = loop_of(app).service, list[EngineBusy]()
    create = service._engine.create

    def handle(*_: object) -> None:
        try:
            enqueued(app, 1)
        except EngineBusy as error:
            errors.append(error)

    async def signalled(jobs: Sequence[NewJob]) -> list[Created]:
        signal.raise_signal(signal.SIGALRM)
        return await create(jobs)

    with monkeypatch.context() as patched, alarm(handle):
        patched.setattr(service._creates, "_flush", signalled)
        enqueued(app, 1)
    assert [str(error) for error in errors] == ([] if service.is_remote else [NESTED])
    assert count(app) == OPENS_AFTER + (2 if service.is_remote else 1)
    before = count(app)
    assert enqueued(app, 1) == [before + 1]


# Close and fork -------------------------------------------------------------------------------------


def test_closing_closes_the_callers_engine_and_the_next_call_opens_it_again(app: Everwork) -> None:
    was = loop_of(app)
    app.sync.close()
    assert was.loop.is_closed()
    assert enqueued(app) == [OPENS_AFTER + n + 1 for n in range(OPENS_AFTER)]
    until_opened(app)


def test_closing_in_a_running_loop_closes_the_callers_engine(app: Everwork) -> None:
    was = loop_of(app)

    async def close() -> None:
        app.sync.close()

    asyncio.run(close())
    assert was.loop.is_closed()


def test_closing_waits_for_a_call_in_another_thread(app: Everwork, monkeypatch: pytest.MonkeyPatch) -> None:
    was = loop_of(app)
    create, begun, may_end = was.service._engine.create, threading.Event(), threading.Event()

    async def slow(jobs: Sequence[NewJob]) -> list[Created]:
        begun.set()
        may_end.wait(DEADLINE_S)
        return await create(jobs)

    monkeypatch.setattr(was.service._creates, "_flush", slow)
    with ThreadPoolExecutor(2) as threads:
        key = threads.submit(enqueued, app, 1)
        assert begun.wait(DEADLINE_S)
        closing = threads.submit(app.sync.close)
        until_sync(lambda: app._host._portal is None)
        assert not closing.done()
        may_end.set()
        assert key.result(DEADLINE_S) == [OPENS_AFTER + 1]
        closing.result(DEADLINE_S)
    assert was.loop.is_closed()


def test_a_signal_handler_may_close_the_application_in_the_middle_of_a_call(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = loop_of(app)
    create = was.service._engine.create

    async def closed(jobs: Sequence[NewJob]) -> list[Created]:
        app.sync.close()
        return await create(jobs)

    monkeypatch.setattr(was.service._creates, "_flush", closed)
    assert enqueued(app, 1) == [OPENS_AFTER + 1]
    assert was.loop.is_closed()


def test_a_fork_leaves_the_callers_engine_to_its_parent(app: Everwork) -> None:
    was = loop_of(app)

    def child() -> None:
        assert app._host._caller_engine._opened is None
        enqueued(app)
        until_opened(app)
        app.sync.close()

    assert in_child(child) == 0
    with busy_engine(app):
        assert enqueued(app, 1) == [2 * OPENS_AFTER + 1]
    assert opened(app) is was


def test_another_thread_may_fork_while_callers_create(app: Everwork) -> None:
    with ThreadPoolExecutor(1) as threads:
        forking = threads.submit(lambda: [in_child(lambda: enqueued(app, 1)) for _ in range(3)])
        keys = enqueued(app, 1)
        while not forking.done():
            keys += enqueued(app, 1)
    assert forking.result() == [0, 0, 0]
    assert keys == sorted(set(keys))
    assert count(app) == OPENS_AFTER + len(keys) + 3


def test_the_end_of_a_fork_does_not_cost_its_parent_the_callers_connection(url: str) -> None:
    program = f"""if True:
        import os, sys, threading
        import tests.app.test_caller_engine
        from everwork import Everwork
        app = Everwork({url!r})
        for n in range({OPENS_AFTER}):
            app.sync.enqueue("work")
        tests.app.test_caller_engine.until_opened(app)
        was = app._host._caller_engine._opened
        if os.fork() == 0:
            app.sync.enqueue("work")
            sys.exit(0)
        assert os.wait()[1] == 0
        threading.Timer({SOON_S}, os._exit, [7]).start()
        assert app.sync.enqueue("work") == {OPENS_AFTER + 2}
        assert was is app._host._caller_engine._opened is not None
        os._exit(0)
    """
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_does_not_close_ends_without_warnings(url: str) -> None:
    program = f"""if True:
        import tests.app.test_caller_engine
        from everwork import Everwork
        app = Everwork({url!r})
        for n in range({OPENS_AFTER}):
            app.sync.enqueue("work")
        tests.app.test_caller_engine.until_opened(app)
        app.sync.enqueue("work")
    """
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_during_a_fork_no_caller_starts_the_loop_of_a_local_store(app: Everwork) -> None:
    """The store closes its connections for the fork, which the loop must not use in the meantime."""
    engine, is_remote = app._host._caller_engine, loop_of(app).service.is_remote

    def child() -> None:
        assert engine._lock.locked() is not is_remote

    assert in_child(child) == 0
    assert not engine._lock.locked()


def test_the_policy_of_a_function_that_is_declared_later_applies_to_its_first_job(app: Everwork) -> None:
    @app.job("later", retry=RetryPolicy(max_attempts=3))
    def later() -> None: ...

    keys = [int(later.sync.enqueue()), int(app.sync.enqueue("later"))]
    assert [app.sync.get(key).max_attempts for key in keys] == [3, 3]
