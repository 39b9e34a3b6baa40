"""The blocking client: the same verbs, from any thread, with no event loop in sight."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from everwork.client import ActiveJob, Client, SyncClient
from everwork.core.outcome import Complete
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, JobFailed, JobNotFound, Unauthenticated
from tests.app.waiting import until_sync
from tests.client.server import KEY, ServerProcess
from tests.stores import url_of


@pytest.fixture(params=["in process", "remote"])
def blocking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncClient]:
    """A blocking client that finds no jobs."""
    if request.param == "in process":
        with SyncClient(url_of("sqlite", tmp_path)) as client:
            yield client
        return
    server: ServerProcess = request.getfixturevalue("shared_server")
    with SyncClient(server.grpc_url, key=KEY) as client:
        yield client
        for job in client.list():
            if job.state in (State.PENDING, State.PROCESSING):
                client.cancel(job.key)
            client.delete(job.key)


def test_every_verb_does_what_its_name_says(blocking: SyncClient) -> None:
    created = blocking.create("a", {"n": 1}, max_attempts=3)
    blocking.create_many([("b", {"n": n}) for n in range(3)])
    [job] = blocking.activate("a", worker="w1")
    blocking.extend(job, 60)
    blocking.fail(job, "boom", backoff=3600)
    assert blocking.history(created.key)[0].error == "boom"
    assert blocking.explain(created.key).state is State.PENDING
    assert blocking.set_retries(created.key, 5) == 2
    blocking.set_priority(created.key, 9)
    blocking.run_now(created.key)
    [job] = blocking.activate("a")
    blocking.complete(job, {"ok": True})
    assert blocking.result(created.key) == {"ok": True}
    assert (blocking.get(created.key).state, blocking.get(created.key).priority) == (State.COMPLETED, 9)
    assert [count.jobs for count in blocking.stats(1).counts if count.state is State.COMPLETED] == [1]
    assert [job.type for job in blocking.list()] == ["b", "b", "b", "a"]
    assert len(blocking.page(limit=2).jobs) == 2
    assert blocking.delete(created.key) is State.COMPLETED


def test_every_outcome_has_its_verb(blocking: SyncClient) -> None:
    blocking.create_many([("a", {})] * 5)
    first, second, third, fourth, fifth = blocking.activate("a")
    blocking.retry(first, "later", delay=60)
    blocking.reject(second, "nonsense")
    blocking.release(third)
    blocking.throw(fourth, "CODE", "thrown")
    assert [one.ok for one in blocking.settle([Complete(fifth.key, fifth.attempt)])] == [True]
    states = [blocking.get(job.key).state.label for job in (first, second, third, fourth, fifth)]
    assert states == ["pending", "failed", "pending", "failed", "completed"]
    assert blocking.requeue(second.key) is State.FAILED
    assert blocking.requeue_matching(type="a").changed == 1
    assert blocking.reschedule(third.key, delay=60) is State.PENDING
    assert blocking.cancel(third.key, "enough") is State.PENDING


def test_errors_are_the_same(blocking: SyncClient) -> None:
    with pytest.raises(JobNotFound):
        blocking.get(9_000_000_000_000_000_000)
    created = blocking.create("a")
    blocking.cancel(created.key, "enough")
    with pytest.raises(JobFailed, match="enough"):
        blocking.result(created.key)


def test_many_threads_share_one_client(blocking: SyncClient) -> None:
    with ThreadPoolExecutor(16) as threads:
        created = list(threads.map(lambda n: blocking.create("a", {"n": n}), range(200)))
    assert len({one.key for one in created}) == 200


def test_handlers_run_in_threads_until_somebody_says_stop(blocking: SyncClient) -> None:
    created = blocking.create_many([("a", {"n": n}) for n in range(20)])
    names: set[str] = set()

    def handle(job: ActiveJob) -> Any:
        names.add(threading.current_thread().name)
        return job.variables["n"]

    working = threading.Thread(target=blocking.work, args=({"a": handle},), kwargs={"concurrency": 4})
    working.start()
    assert [blocking.result(one.key) for one in created] == list(range(20))
    blocking.stop()
    working.join(20)
    assert not working.is_alive()
    assert names
    assert "everwork-client" not in names


def test_a_handler_may_stop_its_worker_and_use_the_client(blocking: SyncClient) -> None:
    def handle(job: ActiveJob) -> int:
        blocking.stop()
        return blocking.create("b").key

    created = blocking.create("a")
    blocking.work({"a": handle})
    assert blocking.get(blocking.result(created.key)).type == "b"


def test_a_client_can_be_closed_and_used_again(blocking: SyncClient) -> None:
    created = blocking.create("a")
    blocking.close()
    blocking.close()
    assert blocking.get(created.key).type == "a"


def test_a_refused_worker_says_why(shared_server: ServerProcess) -> None:
    with SyncClient(shared_server.grpc_url, key="ek-wrong-0123456789abcdef") as client, pytest.raises(Unauthenticated):
        client.work({"a": print})


def test_nothing_is_left_behind(url: str) -> None:
    before = threading.active_count()
    for _ in range(3):
        with SyncClient(url) as client:
            client.create("a")
    until_sync(lambda: threading.active_count() <= before)


async def test_its_own_event_loop_cannot_wait_for_itself(url: str) -> None:
    with SyncClient(url) as client:

        async def nested(job: ActiveJob) -> None:
            try:
                client.create("b")
            except BadConfiguration:
                client.stop()
                raise

        created = client.create("a", max_attempts=1)
        client.work({"a": nested})
        assert "cannot wait for itself" in (client.get(created.key).last_error or "")


def test_both_clients_say_what_they_are(url: str) -> None:
    assert repr(SyncClient("grpc://host:1", key="k" * 20)) == "SyncClient('grpc://host:1')"
    assert repr(Client("redis://:secret@host/0")) == "Client('redis://:***@host/0')"


def test_a_worker_that_is_interrupted_hands_back_what_runs(url: str) -> None:
    program = """
import asyncio, sys
from everwork.client import SyncClient

async def hold(job):
    print("begun", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("tidying", flush=True)
        # A program that does not wait for its handlers ends before the answer comes.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        print("tidied", flush=True)

SyncClient(sys.argv[1]).work({"a": hold})
"""
    with SyncClient(url) as client:
        created = client.create("a")
        command = [sys.executable, "-c", program, url]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun\n"
            worker.send_signal(signal.SIGINT)
            assert worker.stdout.readline() == "tidying\n"
            assert worker.communicate("go on\n", timeout=30)[0] == "tidied\n"
        assert (client.get(created.key).state, client.get(created.key).attempts) == (State.PENDING, 0)


def test_a_program_that_forgets_to_close_ends_all_the_same(shared_server: ServerProcess) -> None:
    program = f"from everwork.client import SyncClient; SyncClient({shared_server.grpc_url!r}, key={KEY!r}).page()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
