"""The sync twins, from one thread and from many."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from everwork import Everwork, State
from everwork.app.sync import SyncEverwork
from everwork.exceptions import EngineUnavailable, Fail, InvalidInput, JobFailed, JobNotFound, ResultTimeout
from everwork.runtime.portal import _chain
from everwork.service.service import JobService
from tests.app.waiting import DEADLINE_S, stop_thread, until_sync
from tests.stores import VirtualClock


@pytest.fixture
def sync_app(url: str, clock: VirtualClock) -> Iterator[Everwork]:
    """An application used without an event loop."""
    app = Everwork(url, clock=clock)
    yield app
    app.sync.close()


def test_every_coroutine_for_users_has_a_twin_with_the_same_parameters() -> None:
    without_twin = {"work", "create"}
    coroutines = {
        name: call
        for name, call in vars(Everwork).items()
        if inspect.iscoroutinefunction(call) and not name.startswith("_") and name not in without_twin
    }
    for name, call in coroutines.items():
        twin = inspect.signature(getattr(SyncEverwork, name))
        assert list(twin.parameters.values()) == list(inspect.signature(call).parameters.values()), name


def test_enqueue_get_cancel_and_history(sync_app: Everwork) -> None:
    key = sync_app.sync.using(dedupe_key="x").enqueue("email-send", to="a")
    again = sync_app.sync.using(dedupe_key="x").enqueue("email-send", to="a")
    sync_app.sync.cancel(key, "not needed")
    job = sync_app.sync.get(key)
    assert (again, again.deduplicated) == (key, True)
    assert (job.state, job.last_error) == (State.CANCELLED, "not needed")
    assert [event.kind for event in sync_app.sync.history(key)] == ["cancel"]


def test_enqueue_many_and_explain(sync_app: Everwork) -> None:
    keys = sync_app.sync.enqueue_many([sync_app.using(delay=60).call("email-send"), ("email-send", {})])
    assert [sync_app.sync.explain(key).reason.value for key in keys] == ["scheduled", "not asked"]


def test_errors_reach_the_caller(sync_app: Everwork) -> None:
    with pytest.raises(InvalidInput, match=r"^priority: "):
        sync_app.sync.using(priority=1.5)  # type: ignore[arg-type]
    with pytest.raises(JobNotFound):
        sync_app.sync.get(4711)
    with pytest.raises(
        ResultTimeout, match=r"is still pending after 0 s: no worker has polled for type 'email-send' yet"
    ):
        sync_app.sync.result(sync_app.sync.enqueue("email-send"), timeout=0)


def test_a_wrong_key_is_refused_by_name(sync_app: Everwork) -> None:
    with pytest.raises(InvalidInput, match=r"^key: must be a job key"):
        sync_app.sync.get(0)


def test_result_and_requeue_of_jobs_that_workers_in_a_thread_run(sync_app: Everwork) -> None:
    @sync_app.job("work")
    def work(fails: bool) -> str:
        if fails:
            raise Fail("no")
        return "done"

    workers = threading.Thread(target=sync_app.run)
    workers.start()
    sync = sync_app.sync
    try:
        assert sync.result(sync.enqueue("work", fails=False), timeout=DEADLINE_S) == "done"
        key = sync.enqueue("work", fails=True)
        with pytest.raises(JobFailed, match="no"):
            sync.result(key, timeout=DEADLINE_S)
        sync.requeue(key)
        until_sync(lambda: sync.get(key).attempt == 2)
    finally:
        stop_thread(sync_app, workers)


def test_many_threads_may_enqueue_at_once_and_each_gets_its_own_keys(sync_app: Everwork) -> None:
    def enqueue(thread: int) -> list[tuple[int, int]]:
        return [(sync_app.sync.enqueue("count", number=thread * 100 + n), thread * 100 + n) for n in range(20)]

    with ThreadPoolExecutor(8) as threads:
        pairs = [pair for made in threads.map(enqueue, range(8)) for pair in made]
    assert len({key for key, _ in pairs}) == 160
    assert all(sync_app.sync.get(key).variables == {"number": number} for key, number in pairs)


def test_many_threads_that_open_at_once_share_one_engine(sync_app: Everwork) -> None:
    barrier, others = threading.Barrier(8), set(threading.enumerate())

    def first_use(_: int) -> int:
        barrier.wait(DEADLINE_S)
        return sync_app.sync.enqueue("email-send")

    with ThreadPoolExecutor(8) as threads:
        keys = list(threads.map(first_use, range(8)))
    assert sorted(keys) == list(range(1, 9))
    assert [t.name for t in set(threading.enumerate()) - others].count("everwork-engine") == 1


def test_with_opens_and_closes(url: str) -> None:
    others = set(threading.enumerate())
    with Everwork(url).sync as sync:
        sync.enqueue("email-send")
    assert "everwork-engine" not in [thread.name for thread in set(threading.enumerate()) - others]


def test_close_without_open_does_nothing(url: str) -> None:
    Everwork(url).sync.close()


def test_a_call_that_comes_while_the_engine_s_loop_stops_gets_an_error(sync_app: Everwork) -> None:
    sync_app.sync.open()
    portal, late = sync_app._host.portal, Future[State]()
    close = portal._close

    async def close_and_stop() -> None:
        await close()
        portal.loop.call_soon(lambda: _chain(portal.loop.create_task(portal._use(state_of_first)), late))
        portal.loop.stop()

    async def state_of_first(service: JobService) -> State:
        return (await service.get(1)).state

    portal._close = close_and_stop  # type: ignore[method-assign]
    with suppress(RuntimeError):  # It stops the loop once more.
        sync_app.sync.close()
    with pytest.raises(EngineUnavailable):
        late.result(DEADLINE_S)


def test_closing_in_the_engine_s_own_thread_is_refused(sync_app: Everwork) -> None:
    sync_app.sync.open()

    async def close() -> None:
        sync_app.sync.close()

    with pytest.raises(RuntimeError, match="engine's thread"):
        asyncio.run_coroutine_threadsafe(close(), sync_app.loop).result(DEADLINE_S)
    [engine] = [thread for thread in threading.enumerate() if thread.ident == ident_of(sync_app)]
    sync_app.sync.close()
    assert not engine.is_alive()


def ident_of(app: Everwork) -> int:
    """Which thread the engine's is."""

    async def here() -> int:
        return threading.get_ident()

    return asyncio.run_coroutine_threadsafe(here(), app.loop).result(DEADLINE_S)


def test_an_interrupted_call_leaves_nothing_in_the_engine_s_loop(
    sync_app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = sync_app.sync.enqueue("work")
    before = len(asyncio.all_tasks(sync_app.loop))

    def interrupted(_: Future[object]) -> object:
        until_sync(lambda: len(asyncio.all_tasks(sync_app.loop)) > before)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sync_app.sync.result(key)
    until_sync(lambda: len(asyncio.all_tasks(sync_app.loop)) <= before)
