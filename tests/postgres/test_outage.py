"""The server dies and comes back, connections are cut, callers give up: nothing is lost and nothing doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import psycopg
import pytest

from everwork.core.leasing import Demand, Verdict
from everwork.core.outcome import Complete, Failed
from everwork.core.states import State
from everwork.engines.postgres.engine import PostgresEngine
from everwork.exceptions import EngineError, EngineUnavailable
from tests.app.waiting import stubbornly, until
from tests.conformance.observe import assert_counts_add_up, every_job
from tests.conformance.own_transactions import OPENINGS
from tests.factories import TYPE, WORKER, a_new_job, a_pending_job, a_processing_job, asked, leased_keys, the_job
from tests.postgres.conftest import opened, without_options
from tests.servers import PostgresServer

T = TypeVar("T")
DEADLINE_S = 30.0


def cut(url: str, which: str = "true") -> int:
    """End connections of engines from the server's side; how many."""
    with psycopg.connect(without_options(url), autocommit=True) as own:
        ended = own.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE application_name = 'everwork' AND datname = current_database() AND {which}".encode()
        ).fetchone()
        assert ended is not None
        return int(ended[0])


async def test_a_full_queue_of_notifications_stops_no_create(server: PostgresServer, own_url: str) -> None:
    """A session that listens and stays in a transaction keeps everything that is notified."""
    with psycopg.connect(server.url, autocommit=True) as own:
        own.execute("ALTER SYSTEM SET max_notify_queue_pages = 64")
        server.kill()
    server.start()
    async with opened(own_url) as engine:
        await a_processing_job(engine)
        while await engine.wait([TYPE], 1):
            pass
        with psycopg.connect(server.url) as stuck, psycopg.connect(server.url, autocommit=True) as own:
            stuck.execute("LISTEN everything")
            stuck.commit()
            stuck.execute("SELECT 1")
            with suppress(psycopg.errors.ProgramLimitExceeded):
                for _ in range(100):
                    own.execute("SELECT pg_notify('everything', repeat('x', 7990))")
            jobs = [await a_pending_job(engine) for _ in range(2)]
            own.execute("ALTER SYSTEM RESET max_notify_queue_pages")
        assert [job.state for job in jobs] == [State.PENDING] * 2
        assert len(await every_job(engine)) == 3


# The server ---------------------------------------------------------------------------------------------


async def test_an_idle_engine_says_in_one_line_that_the_server_is_away_and_goes_on_when_it_is_back(
    server: PostgresServer, own_url: str
) -> None:
    async with opened(own_url) as engine:
        running, waiting = await a_processing_job(engine), await a_pending_job(engine)
        server.kill()
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match=r"^[^\n]+$"):
                await engine.create([a_new_job()])
        server.start()
        assert await stubbornly(lambda: engine.get([running.key, waiting.key])) == [running, waiting]
        assert (await engine.settle([Complete(running.key, 1)])).judged[0].verdict is Verdict.ACCEPTED


async def test_a_server_that_is_shut_down_in_an_orderly_way_is_the_same_to_an_engine(
    server: PostgresServer, own_url: str
) -> None:
    async with opened(own_url) as engine:
        job = await a_pending_job(engine)
        server.stop()
        with pytest.raises(EngineUnavailable, match=r"is the server running\?|when the server is up"):
            await engine.get([job.key])
        server.start()
        assert await stubbornly(lambda: engine.get([job.key])) == [job]


async def test_a_waiter_is_woken_by_a_notification_after_the_server_was_killed_and_came_back(
    server: PostgresServer, own_url: str
) -> None:
    async with opened(own_url) as engine, opened(own_url) as other:
        await engine.wait([TYPE], 1)
        server.kill()
        server.start()
        await renewed(engine)
        mark = engine.mark()
        waiter = asyncio.create_task(engine.wait([TYPE], 60_000, mark))
        await stubbornly(lambda: other.create([a_new_job(dedupe_key="d")]))
        assert await asyncio.wait_for(waiter, DEADLINE_S)


async def test_a_waiter_whose_notification_was_lost_with_the_server_is_sent_to_look(
    server: PostgresServer, own_url: str
) -> None:
    async with opened(own_url) as engine:
        while await engine.wait([TYPE], 1):
            pass
        waiter = asyncio.create_task(engine.wait([TYPE], 60_000))
        await asyncio.sleep(0)
        server.kill()
        server.start()
        assert await asyncio.wait_for(waiter, DEADLINE_S)


async def test_what_was_accepted_survives_any_number_of_kills_of_the_server(
    server: PostgresServer, own_url: str
) -> None:
    async with opened(own_url) as engine:
        accepted: list[int] = []
        for round in range(3):
            creates = [asyncio.ensure_future(engine.create([a_new_job(dedupe_key=f"{round}-{n}")])) for n in range(100)]
            await creates[30]
            server.kill()
            answers = await asyncio.gather(*creates, return_exceptions=True)
            accepted += [answer[0].key for answer in answers if not isinstance(answer, BaseException)]
            assert all(isinstance(answer, list | EngineError) for answer in answers)
            server.start()
            again = [a_new_job(dedupe_key=f"{round}-{n}") for n in range(100)]
            await stubbornly(lambda again=again: engine.create(again))  # type: ignore[misc]
        assert None not in await engine.get(accepted)
        assert len(await every_job(engine)) == 300
        await assert_counts_add_up(engine)


async def test_outcomes_under_way_when_the_server_is_killed_count_once(server: PostgresServer, own_url: str) -> None:
    async with opened(own_url) as engine:
        await engine.create([a_new_job() for _ in range(100)])
        keys = await leased_keys(engine, 100)
        settles = [asyncio.ensure_future(engine.settle([Complete(key, 1, "1")])) for key in keys]
        await settles[20]
        server.kill()
        await asyncio.gather(*settles, return_exceptions=True)
        server.start()
        again = await stubbornly(lambda: engine.settle([Complete(key, 1, "2") for key in keys]))
        assert {one.verdict for one in again.judged} <= {Verdict.ACCEPTED, Verdict.REPEATED}
        assert again.judged[20].verdict is Verdict.REPEATED
        assert {job.state for job in await every_job(engine)} == {State.COMPLETED}
        await assert_counts_add_up(engine)


# Connections ------------------------------------------------------------------------------------------


async def renewed(engine: PostgresEngine, since: int | None = None) -> None:
    """The engine listens, on a connection that was made after this call, or after so many rings."""
    rings = engine._store.finished.count if since is None else since
    async with asyncio.timeout(DEADLINE_S):
        while engine._store.finished.count == rings:
            await engine._store.finished.wait((), 1_000, None)


async def test_an_engine_whose_connections_were_all_cut_at_once_goes_on(server: PostgresServer, own_url: str) -> None:
    async with opened(own_url) as engine:
        await asyncio.gather(*(engine.create([a_new_job()]) for _ in range(20)))
        await engine.wait([TYPE], 1)
        rings = engine._store.finished.count  # It may listen again before the jobs are there.
        assert cut(own_url) >= 2
        assert len((await stubbornly(lambda: asked(engine, 50))).jobs) == 20
        await renewed(engine, rings)


async def test_a_question_is_asked_again_when_its_connection_was_cut(server: PostgresServer, own_url: str) -> None:
    async with opened(f"{own_url}&pool=1") as engine:
        job = await a_pending_job(engine)
        for _ in range(5):
            cut(own_url)
            assert await engine.get([job.key]) == [job]


async def test_an_engine_whose_listening_connection_was_cut_listens_again(server: PostgresServer, own_url: str) -> None:
    async with opened(own_url) as engine, opened(own_url) as other:
        await engine.wait([TYPE], 1)
        assert cut(own_url, "query LIKE 'LISTEN%'") == 1
        await renewed(engine)
        waiter = asyncio.create_task(engine.wait([TYPE], 60_000, engine.mark()))
        await other.create([a_new_job()])
        assert await asyncio.wait_for(waiter, DEADLINE_S)


async def test_cuts_in_the_middle_of_work_lose_and_double_nothing(server: PostgresServer, own_url: str) -> None:
    async with opened(own_url) as engine:
        await engine.create([a_new_job() for _ in range(200)])
        ran: list[int] = []
        while len(ran) < 200:
            leases = [asyncio.ensure_future(engine.activate([Demand(TYPE, WORKER, 5, 1)])) for _ in range(8)]
            await leases[0]
            cut(own_url)
            answers = await asyncio.gather(*leases, return_exceptions=True)
            jobs = [job for answer in answers if not isinstance(answer, BaseException) for job in answer.jobs]
            done = [Complete(job.key, job.attempt) for job in jobs]
            judged = (await stubbornly(lambda done=done: engine.settle(done))).judged  # type: ignore[misc]
            ran += [job.key for job, one in zip(jobs, judged, strict=True) if one.ok]
            await bring_back(engine)
        assert len(ran) == len(set(ran)) == 200
        await assert_counts_add_up(engine)


async def bring_back(engine: PostgresEngine) -> None:
    """What was leased by an answer that never arrived is taken away, and due at once."""
    await stubbornly(lambda: engine.sweep("s"))
    waiting = [job.key for job in await every_job(engine) if job.state is State.PENDING]
    await stubbornly(lambda: engine.reschedule(waiting))


# Callers that give up -----------------------------------------------------------------------------------


async def cancelled_at(call: Coroutine[Any, Any, object], suspension: int) -> bool:
    """Run a call and cancel it while it waits for the nth time; False if it ended before."""

    async def run() -> None:
        await CancelledWhileItWaits(call, suspension)

    task = asyncio.ensure_future(run())
    await asyncio.wait([task], timeout=DEADLINE_S)
    assert task.done()
    if not task.cancelled():
        task.result()
    return task.cancelled()


class CancelledWhileItWaits:
    """A coroutine whose own task is cancelled when it gives way for the nth time."""

    def __init__(self, call: Coroutine[Any, Any, object], suspension: int) -> None:
        self._call = call
        self._suspension = suspension

    def __await__(self) -> Generator[Any, Any, None]:
        with suppress(StopIteration):
            waited = self._call.send(None)
            for number in count():
                if number == self._suspension:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                try:
                    sent = yield waited
                except BaseException as error:  # noqa: BLE001 - it is the call's
                    waited = self._call.throw(error)
                else:
                    waited = self._call.send(sent)


@pytest.mark.parametrize("notify", ["on", "off"])
async def test_a_create_that_is_cancelled_anywhere_happened_as_a_whole_or_not_at_all(url: str, notify: str) -> None:
    async with opened(f"{url}&pool=1&notify={notify}") as engine:
        for suspension in range(100):
            batch = [a_new_job(dedupe_key=f"{suspension}-{n}") for n in range(3)]
            was_cancelled = await cancelled_at(engine.create(batch), suspension)
            answers = await engine.create(batch)
            assert len({answer.deduplicated for answer in answers}) == 1, "half of the batch exists"
            if not was_cancelled:
                break
        assert suspension >= 1
        await assert_counts_add_up(engine)


@pytest.mark.parametrize("notify", ["on", "off"])
@pytest.mark.parametrize("outcome", [Complete(0, 1, "1", (a_new_job(type="next"),)), Failed(0, 1, "boom", final=True)])
async def test_a_settle_that_is_cancelled_anywhere_happened_as_a_whole_or_not_at_all(
    url: str, notify: str, outcome: Complete | Failed
) -> None:
    async with opened(f"{url}&pool=1&notify={notify}") as engine:
        for suspension in range(100):
            job = await a_processing_job(engine)
            own = outcome._replace(key=job.key)
            was_cancelled = await cancelled_at(engine.settle([own]), suspension)
            [again] = (await engine.settle([own])).judged
            assert again.verdict in (Verdict.ACCEPTED, Verdict.REPEATED)
            assert (await the_job(engine, job.key)).state in (State.COMPLETED, State.FAILED)
            if not was_cancelled:
                break
        assert suspension >= 1
        events = [job for job in await every_job(engine) if job.type == "next"]
        assert len(events) == (suspension + 1 if isinstance(outcome, Complete) else 0)
        await assert_counts_add_up(engine)


async def test_a_caller_that_gives_up_leaves_room_for_the_next(url: str) -> None:
    async with opened(f"{url}&pool=2") as engine:
        for _ in range(20):
            calls = [asyncio.ensure_future(engine.create([a_new_job()])) for _ in range(6)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(answer, list) for answer in answers[1::2])
        assert len(engine._store.connections._idle) <= 2


@pytest.mark.parametrize("notify", ["on", "off"])
async def test_a_caller_that_gives_up_waiting_for_somebody_elses_transaction_leaves_room_for_the_next(
    url: str, notify: str
) -> None:
    async with opened(f"{url}&pool=1&notify={notify}") as engine, OPENINGS["asyncpg"](url, True) as own:
        await a_pending_job(engine)
        await engine.create_in(own.tx, [a_new_job(dedupe_key="d")])
        waiting = asyncio.create_task(engine.create([a_new_job(type="lost"), a_new_job(dedupe_key="d")]))
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        await until(lambda: own.tx.fetchval(sql))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await a_pending_job(engine, type="next")).state is State.PENDING
        await own.commit()
        # What was one statement may still be done by a server that has not heard of the end; a transaction may not.
        assert notify == "on" or {job.type for job in await every_job(engine)} == {TYPE, "next"}
