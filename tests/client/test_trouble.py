"""Servers that are killed, stopped, away, slow or unwilling; lines that break; keys that are taken back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everwork.client import ActiveJob, Client, SyncClient, new_job
from everwork.core.leasing import Created
from everwork.core.outcome import Complete
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.exceptions import (
    BadConfiguration,
    CallTimeout,
    EngineUnavailable,
    InvalidInput,
    JobNotFound,
    PermissionDenied,
    TooManyRequests,
    Unauthenticated,
)
from tests.app.waiting import RESTART_S, until
from tests.client.server import KEY, ServerProcess, a_free_port
from tests.client.test_worker import has_error, working
from tests.forked import run_forked
from tests.torture.proxy import Proxy

DEADLINE_S = 60.0


# Servers that go away -------------------------------------------------------------------------------


async def test_a_killed_server_costs_no_job_and_resumed_attempts_keep_their_lease(server: ServerProcess) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def hold(job: ActiveJob) -> int:
        begun.set()
        await gate.wait()
        return job.attempt

    async def echo(job: ActiveJob) -> Any:
        await asyncio.sleep(0)
        return job.variables["n"]

    async with Client(server.grpc_url, key=KEY) as client:
        held = await client.create("hold")
        # What a server has leased but not yet sent when it is killed comes back when the lease lapses.
        policy = RetryPolicy(max_attempts=20, base=0.0)
        created = await client.create_many([new_job("echo", {"n": n}, retry=policy) for n in range(3_000)])
        async with working(client, {"hold": hold}), working(client, {"echo": echo}, lease=2):
            await begun.wait()
            await until(lambda: has_completed(client, 100), DEADLINE_S)
            server.kill()
            server.start()
            gate.set()
            assert await client.result(held.key, DEADLINE_S) == 1
            await until(lambda: has_completed(client, 3_001), DEADLINE_S)
        results = {job.key: job.result async for job in client.list(type="echo")}
    assert [results[one.key] for one in created] == [*range(3_000)]


async def test_outcomes_that_come_while_the_server_is_away_are_delivered_later(server: ServerProcess) -> None:
    async with Client(server.grpc_url, key=KEY) as client:
        created = await client.create("s")
        async with client.stream(worker="w1") as stream:
            stream.grant("s", 1)
            [job] = await anext(stream)
            server.kill()
            stream.complete(job, "late")
            server.start()
            assert await client.result(created.key, DEADLINE_S) == "late"
        assert list(stream.refusals) == []


async def test_a_server_that_stops_does_not_wait_for_handlers_and_gets_them_back(server: ServerProcess) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def hold(job: ActiveJob) -> int:
        begun.set()
        await gate.wait()
        return job.attempt

    async with Client(server.grpc_url, key=KEY) as client:
        created = await client.create("hold")
        async with working(client, {"hold": hold}):
            await begun.wait()
            assert await asyncio.to_thread(server.stop) == 0
            server.start()
            gate.set()
            assert await client.result(created.key, DEADLINE_S) == 1
            following = await client.create("hold")
            assert await client.result(following.key, DEADLINE_S) == 1


async def test_a_worker_that_waited_for_work_goes_on_waiting_after_a_restart(server: ServerProcess) -> None:
    async def echo(job: ActiveJob) -> int:
        return job.attempt

    async with Client(server.grpc_url, key=KEY) as client, working(client, {"echo": echo}):
        assert await client.result((await client.create("echo")).key, DEADLINE_S) == 1
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        created = await client.create("echo", dedupe_key="after")
        assert await client.result(created.key, DEADLINE_S) == 1


async def test_a_worker_can_be_stopped_while_the_server_is_away(server: ServerProcess) -> None:
    gate, begun, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold(job: ActiveJob) -> None:
        begun.set()
        await gate.wait()

    async with Client(server.grpc_url, key=KEY) as client:
        await client.create("hold")
        task = asyncio.create_task(client.work({"hold": hold}, stop=stop))
        await begun.wait()
        await asyncio.to_thread(server.kill)
        stop.set()
        gate.set()
        await asyncio.wait_for(task, DEADLINE_S)


async def test_a_broken_line_costs_no_attempt(server: ServerProcess) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def hold(job: ActiveJob) -> int:
        begun.set()
        await gate.wait()
        return job.attempt

    proxy = Proxy(int(server.facts["grpc_port"]))
    port = await proxy.start()
    async with Client(f"grpc://127.0.0.1:{port}", key=KEY) as client, Client(server.grpc_url, key=KEY) as other:
        created = await other.create("hold")
        async with working(client, {"hold": hold}):
            await begun.wait()
            proxy.heal()
            await until(lambda: client.get(created.key))
            gate.set()
            assert await other.result(created.key, DEADLINE_S) == 1
    await proxy.close()


async def test_attempts_that_run_on_in_another_stream_outlive_the_old_one(server: ServerProcess) -> None:
    async with Client(server.grpc_url, key=KEY) as client:
        created = [await client.create("s") for _ in range(2)]
        old, new = client.stream(worker="w1"), client.stream(worker="w1")
        await old.__aenter__()
        old.grant("s", 2)
        while old.held < 2:
            await anext(old)
        # A worker whose connection is dead reconnects before the server has noticed.
        new._held[created[0].key] = old._held[created[0].key]
        async with new:
            await until(lambda: getattr(new, "_is_welcomed", False))
            assert old._task is not None
            old._task.cancel()
            await until(lambda: has_error(client, created[1].key))
            job = await client.get(created[0].key)
            assert (job.state, job.attempt, job.last_error) == (State.PROCESSING, 1, None)


async def test_reads_wait_for_a_server_that_is_restarted(server: ServerProcess) -> None:
    async with Client(server.grpc_url, key=KEY, timeout=RESTART_S) as client:
        created = await client.create("a")
        server.kill()
        asking = asyncio.create_task(client.get(created.key))
        making = asyncio.create_task(client.create("a", dedupe_key="once"))
        waiting = asyncio.create_task(client.activate("b", wait=RESTART_S))
        await asyncio.sleep(0)
        await asyncio.to_thread(server.start)
        assert (await asking).key == created.key
        assert (await making).deduplicated is False
        later = await client.create("b", dedupe_key="b")
        assert [job.key for job in await waiting] == [later.key]


async def test_what_must_not_happen_twice_is_not_repeated(server: ServerProcess) -> None:
    async with Client(server.grpc_url, key=KEY, timeout=DEADLINE_S) as client:
        created = await client.create("a")
        server.kill()
        begun = time.monotonic()
        for call in (client.create("a"), client.cancel(created.key), client.complete(created.key)):
            with pytest.raises(EngineUnavailable, match="the server cannot be reached"):
                await call
        assert time.monotonic() - begun < DEADLINE_S


async def test_a_server_that_is_away_is_told_when_the_time_is_up() -> None:
    async with Client(f"grpc://127.0.0.1:{a_free_port()}", key=KEY, timeout=0.4) as client:
        with pytest.raises(EngineUnavailable, match="the server cannot be reached"):
            await client.get(1)


async def test_a_server_that_does_not_answer_is_a_time_out(shared_server: ServerProcess) -> None:
    made: list[Created] = []
    async with Client(shared_server.grpc_url, key=KEY, timeout=0.3) as client:

        async def is_connected() -> bool:
            with suppress(CallTimeout):
                made.append(await client.create("a"))
            return bool(made)

        await until(is_connected)
        shared_server.signal(signal.SIGSTOP)
        try:
            for call in (client.get(made[0].key), client.create("a"), client.activate("a", wait=0.1)):
                with pytest.raises(CallTimeout):
                    await call
        finally:
            shared_server.signal(signal.SIGCONT)


# Keys -----------------------------------------------------------------------------------------------


async def test_keys_that_are_missing_or_wrong_are_refused(shared_server: ServerProcess) -> None:
    for key in (None, "ek-wrong-0123456789abcdef"):
        async with Client(shared_server.grpc_url, key=key) as client:
            with pytest.raises(Unauthenticated):
                await client.get(1)
            with pytest.raises(Unauthenticated):
                await client.work({"a": print})


async def test_the_key_comes_from_the_environment(
    shared_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERWORK_API_KEY", KEY)
    async with Client(shared_server.grpc_url) as client:
        assert await client.activate("nothing") == []


async def test_a_key_allows_what_it_allows(shared_server: ServerProcess) -> None:
    reading, bound = a_key(shared_server, "jobs:read"), a_key(shared_server, "jobs", tenant="acme")
    async with Client(shared_server.grpc_url, key=KEY) as client:
        other = await client.create("a", tenant="other")
    async with Client(shared_server.grpc_url, key=reading) as client:
        await until(lambda: knows(client))
        with pytest.raises(PermissionDenied, match="lacks the permission"):
            await client.create("a")
    async with Client(shared_server.grpc_url, key=bound) as client:
        await until(lambda: knows(client))
        created = await client.create("a")
        assert (await client.get(created.key)).tenant == "acme"
        for call in (client.get, client.cancel, client.run_now, client.result):
            with pytest.raises(JobNotFound, match=f"Job '{other.key}' not found"):
                await call(other.key)
        assert await client.history(other.key) == []
        with pytest.raises(PermissionDenied):
            await client.create("a", tenant="other")
        assert [job.key async for job in client.list()] == [created.key]


async def test_a_key_that_is_revoked_ends_the_stream(shared_server: ServerProcess) -> None:
    key = a_key(shared_server, "jobs")
    begun = asyncio.Event()

    async def hold(job: ActiveJob) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Client(shared_server.grpc_url, key=key) as client:
        await until(lambda: knows(client))
        created = await client.create("hold")
        task = asyncio.create_task(client.work({"hold": hold}))
        await begun.wait()
        revoke(shared_server, key)
        with pytest.raises(Unauthenticated):
            await asyncio.wait_for(task, DEADLINE_S)
        with pytest.raises((Unauthenticated, TooManyRequests), match="API key"):
            await client.get(created.key)


async def test_too_many_calls_say_when_to_come_again(url: str, tmp_path: Path) -> None:
    (tmp_path / "everwork.toml").write_text("rate_limit = 1\n")
    server = ServerProcess(url, tmp_path).start()
    try:
        async with Client(server.grpc_url, key=KEY) as client:
            with pytest.raises(TooManyRequests) as raised:
                await asyncio.gather(*(client.page() for _ in range(50)))
        assert 0 < raised.value.retry_after_ms <= 2_000
    finally:
        server.stop()


async def test_a_server_may_take_a_while_to_answer_the_first_connection(server: ServerProcess) -> None:
    """A create without a dedupe key is not repeated: it has this one attempt to connect."""
    server.signal(signal.SIGSTOP)
    async with Client(server.grpc_url, key=KEY) as client:
        creating = asyncio.create_task(client.create("a"))
        await asyncio.wait([creating], timeout=1)
        server.signal(signal.SIGCONT)
        assert (await creating).key == 1


async def test_a_wait_may_be_longer_than_the_servers_polls(url: str, tmp_path: Path) -> None:
    (tmp_path / "everwork.toml").write_text("long_poll_seconds = 0.1\n")
    server = ServerProcess(url, tmp_path).start()
    try:
        async with Client(server.grpc_url, key=KEY) as client:
            waiting = asyncio.create_task(client.activate("a", wait=DEADLINE_S))
            assert await client.activate("other", wait=0.5) == []
            created = await client.create("a")
            assert [job.key for job in await waiting] == [created.key]
    finally:
        server.stop()


async def test_secrets_are_shown_nowhere(shared_server: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    secret = "ek-secret-0123456789abcdef"
    client, blocking = Client(shared_server.grpc_url, key=secret), SyncClient("postgresql://u:pa55word@localhost/db")
    with pytest.raises(Unauthenticated) as raised:
        await client.get(1)
    told = f"{client!r} {blocking!r} {raised.value} {client.transport.__dict__} {caplog.text}"
    assert secret not in told
    assert "pa55word" not in repr(blocking)
    await client.close()


# Lines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("grpc://", {}, "must look like grpc://host:27500"),
        ("grpc://host:0", {}, "must look like grpc://host:27500"),
        ("grpc://host:70000", {}, "must look like grpc://host:27500"),
        ("grpc://host/path", {}, "must look like grpc://host:27500"),
        ("grpc://user:secret@host", {}, "must look like grpc://host:27500"),
        ("http://host", {}, "unknown scheme"),
        ("sqlite:///x.db", {"key": "k"}, "key and tls are for servers"),
        ("sqlite:///x.db", {"tls_key": "k"}, "key and tls are for servers"),
        ("grpc://host", {"key": "ü"}, "printable ASCII"),
        ("grpc://host", {"key": "a\nb"}, "printable ASCII"),
        ("grpc://host", {"tls": "/nowhere/ca.pem"}, "cannot be read"),
        ("grpc://host", {"tls": 7}, "must be True, False or the path"),
    ],
)
def test_a_client_that_makes_no_sense_is_refused(url: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadConfiguration, match=problem) as raised:
        Client(url, **options)
    assert "secret" not in str(raised.value)


# Sizes ----------------------------------------------------------------------------------------------


async def test_large_jobs_come_and_go_in_messages_that_everybody_takes(remote: Client) -> None:
    big = {"text": "x" * 900_000}
    created = [await remote.create("big", big) for _ in range(8)]
    assert len([job async for job in remote.list(type="big")]) == 8
    jobs = await remote.activate("big", limit=100)
    assert [job.key for job in jobs] == [one.key for one in created]
    assert all(job.variables == big for job in jobs)
    for job in jobs:
        await remote.complete(job, big)
    assert await remote.result(created[0].key) == big


async def test_a_stream_carries_large_jobs_and_results(remote: Client) -> None:
    big = {"text": "x" * 900_000}

    async def echo(job: ActiveJob) -> Any:
        return job.variables

    created = [await remote.create("big", big) for _ in range(8)]
    async with working(remote, {"big": echo}):
        assert [await remote.result(one.key) for one in created] == [big] * 8


async def test_a_batch_that_is_too_large_for_one_message_is_refused_by_name(remote: Client) -> None:
    with pytest.raises(InvalidInput, match=r"jobs: must be at most 4,194,304 bytes in total, not .*split the call"):
        await remote.create_many([new_job("big", {"text": "x" * 900_000})] * 5)
    with pytest.raises(InvalidInput, match="jobs: must be at most 10,000 in one call"):
        await remote.create_many([("small", {})] * 10_001)


async def test_ten_thousand_jobs_and_outcomes_go_in_one_call(server: ServerProcess) -> None:
    async with Client(server.grpc_url, key=KEY) as client:
        assert len(await client.create_many([("many", {})] * 10_000)) == 10_000
        jobs = [job for _ in range(10) for job in await client.activate("many", limit=1_000)]
        judged = await client.settle([Complete(job.key, job.attempt) for job in jobs])
    assert [len(judged), all(one.ok for one in judged)] == [10_000, True]


# Places ---------------------------------------------------------------------------------------------


def test_a_client_belongs_to_the_loop_and_the_process_that_opened_it(url: str) -> None:
    client = Client(url)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        first.run_until_complete(client.create("a"))
        with pytest.raises(BadConfiguration, match="another event loop"):
            second.run_until_complete(client.create("a"))
        first.run_until_complete(client.close())
        second.run_until_complete(client.create("a"))
        second.run_until_complete(client.close())
    finally:
        first.close()
        second.close()


def test_a_forked_child_needs_a_client_of_its_own(url: str) -> None:
    with SyncClient(url) as client:
        client.create("a")
        child = os.fork()
        if not child:
            try:
                client.create("a")
            except BadConfiguration as error:
                os._exit(0 if "fork" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.create("a").key


# What the tests need --------------------------------------------------------------------------------


async def has_completed(client: Client, jobs: int) -> bool:
    counts = (await client.stats(1)).counts
    return sum(count.jobs for count in counts if count.state is State.COMPLETED) >= jobs


async def knows(client: Client) -> bool:
    """Whether the server knows the client's key; an address that keeps trying before that is throttled."""
    try:
        await client.page()
    except (Unauthenticated, TooManyRequests):
        return False
    return True


def a_key(server: ServerProcess, permission: str, *, tenant: str | None = None) -> str:
    """A new key, made as an operator makes it."""
    tenants = ["--tenant", tenant] if tenant else []
    answer = _keys(server, "create", "--name", f"k-{permission}", "--permission", permission, *tenants, "--json")
    text: str = json.loads(answer)["key"]
    return text


def revoke(server: ServerProcess, key: str) -> None:
    """Take a key back."""
    _keys(server, "revoke", key.split("_")[1])


def _keys(server: ServerProcess, *arguments: str) -> str:
    done = run_forked("everwork", ["keys", *arguments, "--engine", server.url])
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()
