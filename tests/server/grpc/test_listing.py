"""ListJobs: filters, pages by offset, totals and sorts."""

from __future__ import annotations

from typing import Any

import pytest

from everwork.core.job import NewJob
from everwork.server.grpc import offset_pages
from everwork.service.jobs import Jobs, in_process
from everwork.service.verb import IN_PROCESS
from tests.server.grpc.running import TYPE, RunningServer


async def keys_of(server: RunningServer, **fields: Any) -> list[int]:
    """The keys of one page."""
    return [int(job.job_key) for job in (await server.call("ListJobs", **fields)).jobs]


async def test_the_newest_come_first_unless_something_else_is_asked_for(server: RunningServer) -> None:
    keys = [int(await server.create()) for _ in range(15)]
    newest = keys[::-1]
    assert await keys_of(server) == newest[:10]
    assert await keys_of(server, limit=15) == newest
    assert await keys_of(server, sort_by="created_at", sort_desc=True, limit=3) == newest[:3]
    assert await keys_of(server, sort_by="created_at", limit=3) == keys[:3]


@pytest.mark.every_engine
@pytest.mark.parametrize("sort_desc", [True, False])
async def test_pages_by_offset_meet_every_job_once(server: RunningServer, sort_desc: bool) -> None:
    keys = [int(await server.create()) for _ in range(23)]
    seen: list[int] = []
    for offset in range(0, 30, 5):
        page = await server.call("ListJobs", limit=5, offset=offset, sort_by="created_at", sort_desc=sort_desc)
        seen += [int(job.job_key) for job in page.jobs]
        assert (page.total, page.has_more) == (23, offset + 5 < 23)
    assert seen == (keys[::-1] if sort_desc else keys)


async def test_the_oldest_are_found_among_many_others(sqlite_server: RunningServer) -> None:
    """Sparse, then dense: the search for the oldest must not read them all, nor miss one."""
    server = sqlite_server
    mine, others = NewJob(TYPE), NewJob("other")
    batches = [[mine], [others] * 5_000, [mine] * 3, [others] * 3_000, [mine] * 2_000]
    keys = [c.key for batch in batches for c in await server.service.create(batch) if batch[0] is mine]
    assert await keys_of(server, job_type=TYPE, sort_by="created_at", limit=7) == keys[:7]
    assert await keys_of(server, job_type=TYPE, sort_by="created_at", limit=7, offset=1_200) == keys[1_200:1_207]
    assert await keys_of(server, job_type=TYPE, sort_by="created_at", limit=10, offset=1_999) == keys[1_999:]


@pytest.mark.every_engine
async def test_filters_by_type_state_and_worker(server: RunningServer) -> None:
    await server.create(job_type="other")
    running = await server.an_activated_job()
    waiting = await server.create()
    later = await server.create(delay_ms=60_000)
    assert await keys_of(server, state="RUNNING") == [int(running.job_key)]
    assert await keys_of(server, state="activated", job_type=TYPE) == [int(running.job_key)]
    assert await keys_of(server, worker="w1") == [int(running.job_key)]
    assert await keys_of(server, worker="nobody") == []
    assert await keys_of(server, job_type=TYPE, state="PENDING") == [int(later), int(waiting)]
    assert await keys_of(server, job_type=TYPE, state="Activatable") == [int(waiting)]


async def test_totals_are_exact_for_type_and_state_and_counted_with_a_worker(server: RunningServer) -> None:
    await server.create(job_type="other")
    await server.an_activated_job()
    for _ in range(3):
        await server.create()

    async def total(**fields: Any) -> int:
        return int((await server.call("ListJobs", limit=1, **fields)).total)

    assert [await total(), await total(job_type=TYPE), await total(state="PENDING")] == [5, 4, 4]
    assert [await total(job_type=TYPE, state="QUEUED"), await total(worker="w1")] == [3, 1]
    assert [await total(state="ACTIVATABLE"), await total(job_type="none")] == [4, 0]


async def test_sorts_by_retries_deadline_and_activation(server: RunningServer) -> None:
    few, many = await server.an_activated_job(retries=2), await server.an_activated_job(retries=9)
    await server.call("UpdateJobTimeout", job_key=few.job_key, timeout=3_600_000)
    never = int(await server.create(retries=5))
    few_key, many_key = int(few.job_key), int(many.job_key)
    assert await keys_of(server, sort_by="retries") == [few_key, never, many_key]
    assert await keys_of(server, sort_by="retries", sort_desc=True) == [many_key, never, few_key]
    assert await keys_of(server, sort_by="deadline") == [many_key, few_key, never]
    assert await keys_of(server, sort_by="deadline", sort_desc=True) == [few_key, many_key, never]
    assert await keys_of(server, sort_by="activated_at", limit=1, offset=2) == [never]
    assert (await server.call("ListJobs", sort_by="retries", limit=2)).has_more


async def test_a_sort_that_does_not_see_all_matches_says_so(
    sqlite_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_pages, "SORTED_MAX", 10)
    keys = [int(await sqlite_server.create(retries=n)) for n in range(1, 13)]
    answer = await sqlite_server.call("ListJobs", sort_by="retries", limit=2)
    assert [int(job.job_key) for job in answer.jobs] == keys[2:4]
    assert "sorted by retries among the newest 10 matches only" in answer.message


async def test_counting_with_a_worker_stops(sqlite_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_pages, "REACH_MAX", 20)
    for _ in range(25):
        await sqlite_server.create()
    await sqlite_server.activate(max_jobs_to_activate=100)
    assert (await sqlite_server.call("ListJobs", worker="w1")).total == 20
    assert (await sqlite_server.call("ListJobs")).total == 25


async def test_a_page_of_large_jobs_ends_before_the_message_is_too_large(sqlite_server: RunningServer) -> None:
    keys = [int(await sqlite_server.create(variables={"a": "x" * 900_000})) for _ in range(4)][::-1]
    first = await sqlite_server.call("ListJobs")
    second = await sqlite_server.call("ListJobs", offset=len(first.jobs))
    assert first.has_more
    assert "continue at offset 1" in first.message
    assert first.ByteSize() <= 3 * 1024 * 1024
    assert [int(job.job_key) for job in [*first.jobs, *second.jobs]] == keys[: len(first.jobs) + len(second.jobs)]


async def test_a_job_at_every_limit_still_fits_into_a_message(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    large = '{"a":[' + ",".join(["1"] * 524_000) + "]}"
    job = await server.an_activated_job(variables_json=large, custom_headers={"h": "x" * 65_000})
    await server.call("CompleteJob", job_key=job.job_key, variables_json=large)
    answer = await server.call("GetJob", job_key=job.job_key)
    assert answer.ByteSize() <= 3 * 1024 * 1024
    assert (answer.job.variables_json, answer.job.result_json) == (large, large)
    assert "its variables are only in variables_json" in answer.message


async def test_jobs_that_are_deleted_meanwhile_are_left_out(sqlite_server: RunningServer) -> None:
    server = sqlite_server
    desk = Jobs(server.service, IN_PROCESS)
    kept, gone = int(await server.create()), int(await server.create())
    await in_process(server.service).cancel(gone)
    await in_process(server.service).delete(gone)
    assert [job and job.key for job in await desk.get_many([gone, kept])] == [None, kept]
