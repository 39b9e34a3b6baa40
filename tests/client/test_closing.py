"""Clients that are closed in the middle of something: nobody is left hanging, and what ran goes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everwork.client import ActiveJob, Client, SyncClient
from everwork.core.states import State
from everwork.exceptions import BadConfiguration, EngineUnavailable, EverworkError
from tests.app.waiting import until, until_sync
from tests.client.server import KEY, ServerProcess, a_free_port
from tests.stores import url_of

LONG_S = 300.0
JOIN_S = 30.0
CLOSED = r"^the client was closed$"


async def hold(job: ActiveJob) -> None:
    await asyncio.Event().wait()


# With an event loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda client, key: client.activate("nothing", wait=LONG_S),
        lambda client, key: client.result(key, LONG_S),
        lambda client, key: client.work({"nothing": hold}),
    ],
)
async def test_whoever_waits_is_told_that_the_client_was_closed(client: Client, call: Callable[..., Any]) -> None:
    created = await client.create("a")
    task = asyncio.create_task(call(client, created.key))
    await until(lambda: client._connection.calls.are_in_progress)
    await client.close()
    with pytest.raises(EngineUnavailable, match=CLOSED):
        await asyncio.wait_for(task, JOIN_S)
    assert (await client.get(created.key)).state is State.PENDING


async def test_a_call_that_is_being_repeated_is_told_that_the_client_was_closed() -> None:
    client = Client(f"grpc://127.0.0.1:{a_free_port()}", key=KEY, timeout=LONG_S)
    task = asyncio.create_task(client.get(1))
    await until(lambda: client._connection.calls.are_in_progress)
    await client.close()
    with pytest.raises(EngineUnavailable, match=CLOSED):
        await asyncio.wait_for(task, JOIN_S)


async def test_a_closed_client_hands_back_what_its_worker_runs(client: Client) -> None:
    begun = asyncio.Event()

    async def begin(job: ActiveJob) -> None:
        begun.set()
        await hold(job)

    created = await client.create("hold")
    task = asyncio.create_task(client.work({"hold": begin}))
    await begun.wait()
    await client.close()
    with pytest.raises(EngineUnavailable, match=CLOSED):
        await asyncio.wait_for(task, JOIN_S)
    job = await client.get(created.key)
    assert (job.state, job.attempts) == (State.PENDING, 0)


async def test_a_closed_client_breaks_its_streams_off(client: Client) -> None:
    created = await client.create("s")
    async with client.stream() as stream:
        stream.grant("s", 5)
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await client.close()
        with pytest.raises(EngineUnavailable, match=CLOSED):
            await asyncio.wait_for(waiting, JOIN_S)
    job = await client.get(created.key)
    assert (job.state, job.attempts) == (State.PENDING, 0)


# Without one ----------------------------------------------------------------------------------------


@pytest.fixture(params=["in process", "remote", "a server that is away"])
def blocking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SyncClient]:
    """A blocking client, of a server that may be away."""
    if request.param == "in process":
        client = SyncClient(url_of("sqlite", tmp_path), timeout=LONG_S)
    elif request.param == "remote":
        client = SyncClient(request.getfixturevalue("shared_server").grpc_url, key=KEY, timeout=LONG_S)
    else:
        client = SyncClient(f"grpc://127.0.0.1:{a_free_port()}", key=KEY, timeout=LONG_S)
    yield client
    client.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.activate("nothing", wait=LONG_S),
        lambda client: client.work({"nothing": print}),
    ],
)
def test_closing_ends_the_calls_of_other_threads(blocking: SyncClient, call: Callable[[SyncClient], Any]) -> None:
    errors: list[BaseException] = []
    threads = [threading.Thread(target=told, args=(call, blocking, errors), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    until_sync(lambda: len(blocking._waiting) == 3)
    blocking.close()
    for thread in threads:
        thread.join(JOIN_S)
    assert [(type(error), str(error)) for error in errors] == [(EngineUnavailable, "the client was closed")] * 3


async def stubborn(job: ActiveJob | None = None) -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@pytest.mark.parametrize("call", [lambda one: one.work({"a": stubborn}), lambda one: one._run(stubborn)])
def test_what_cannot_be_stopped_keeps_nobody_hanging(
    url: str, call: Callable[[SyncClient], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.client.sync.CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("everwork.client.transport.END_SECONDS", 0.05)
    errors: list[BaseException] = []
    client = SyncClient(url)
    client.create("a")
    thread = threading.Thread(target=told, args=(call, client, errors), daemon=True)
    thread.start()
    until_sync(lambda: client._waiting)
    client.close()
    thread.join(JOIN_S)
    assert [str(error) for error in errors] == ["the client was closed"]


async def test_whoever_calls_while_the_client_is_being_closed_opens_it_again(client: Client) -> None:
    async def ask() -> None:
        while not is_over:
            try:
                await client.page()
            except EngineUnavailable as error:
                messages.add(str(error))

    is_over, messages = False, {"the client was closed"}
    tasks = [asyncio.create_task(ask()) for _ in range(4)]
    for _ in range(20):
        await client.close()
        await client.page()
    is_over = True
    await asyncio.gather(*tasks)
    assert messages == {"the client was closed"}


def test_a_thread_that_calls_while_the_client_is_being_closed_opens_it_again(shared_server: ServerProcess) -> None:
    client, is_over = SyncClient(shared_server.grpc_url, key=KEY), threading.Event()
    errors: list[BaseException] = []
    messages = {"the client was closed"}

    def ask(one: SyncClient) -> None:
        while not is_over.is_set():
            try:
                one.page()
            except EngineUnavailable as error:
                messages.add(str(error))

    threads = [threading.Thread(target=told, args=(ask, client, errors), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        client.close()
    is_over.set()
    for thread in threads:
        thread.join(JOIN_S)
    client.close()
    assert (errors, messages) == ([], {"the client was closed"})
    assert not any(thread.is_alive() for thread in threads)


def test_a_handler_in_a_thread_may_close_its_client(url: str) -> None:
    client = SyncClient(url)
    created = client.create("a")
    with pytest.raises(EngineUnavailable, match=CLOSED):
        client.work({"a": lambda job: client.close()})
    assert client.get(created.key).type == "a"
    client.close()


def test_its_own_event_loop_cannot_close_a_blocking_client(url: str) -> None:
    async def close(job: ActiveJob) -> None:
        client.stop()
        client.close()

    with SyncClient(url) as client:
        created = client.create("a", max_attempts=1)
        client.work({"a": close})
        assert BadConfiguration.__name__ in (client.get(created.key).last_error or "")


def told(call: Callable[[SyncClient], Any], client: SyncClient, errors: list[BaseException]) -> None:
    """Call, and note what comes of it if that is no answer."""
    try:
        call(client)
    except (EverworkError, RuntimeError) as error:
        errors.append(error)
