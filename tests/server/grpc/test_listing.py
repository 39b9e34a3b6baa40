"""ListJobs: filters, pages by offset, totals and sorts."""

from __future__ import annotations

from typing import Any

import pytest

from everwork.core.job import NewJob
from everwork.server.grpc import offset_pages
from everwork.service.access.principal import ANYBODY
from everwork.service.jobs import Jobs
from tests.server.grpc.place import TYPE, Place


async def keys_of(place: Place, **fields: Any) -> list[int]:
    """The keys of one page."""
    return [int(job.job_key) for job in (await place.call("ListJobs", **fields)).jobs]


async def test_the_newest_come_first_unless_something_else_is_asked_for(place: Place) -> None:
    keys = [int(await place.create()) for _ in range(15)]
    newest = keys[::-1]
    assert await keys_of(place) == newest[:10]
    assert await keys_of(place, limit=15) == newest
    assert await keys_of(place, sort_by="created_at", sort_desc=True, limit=3) == newest[:3]
    assert await keys_of(place, sort_by="created_at", limit=3) == keys[:3]


@pytest.mark.every_engine
@pytest.mark.parametrize("sort_desc", [True, False])
async def test_pages_by_offset_meet_every_job_once(place: Place, sort_desc: bool) -> None:
    keys = [int(await place.create()) for _ in range(23)]
    seen: list[int] = []
    for offset in range(0, 30, 5):
        page = await place.call("ListJobs", limit=5, offset=offset, sort_by="created_at", sort_desc=sort_desc)
        seen += [int(job.job_key) for job in page.jobs]
        assert (page.total, page.has_more) == (23, offset + 5 < 23)
    assert seen == (keys[::-1] if sort_desc else keys)


async def test_the_oldest_are_found_among_many_others(sqlite_place: Place) -> None:
    """Sparse, then dense: the search for the oldest must not read them all, nor miss one."""
    place = sqlite_place
    mine, others = NewJob(TYPE), NewJob("other")
    batches = [[mine], [others] * 5_000, [mine] * 3, [others] * 3_000, [mine] * 2_000]
    keys = [c.key for batch in batches for c in await place.service.create(batch) if batch[0] is mine]
    assert await keys_of(place, job_type=TYPE, sort_by="created_at", limit=7) == keys[:7]
    assert await keys_of(place, job_type=TYPE, sort_by="created_at", limit=7, offset=1_200) == keys[1_200:1_207]
    assert await keys_of(place, job_type=TYPE, sort_by="created_at", limit=10, offset=1_999) == keys[1_999:]


@pytest.mark.every_engine
async def test_filters_by_type_state_and_worker(place: Place) -> None:
    await place.create(job_type="other")
    running = await place.an_activated_job()
    waiting = await place.create()
    later = await place.create(delay_ms=60_000)
    assert await keys_of(place, state="RUNNING") == [int(running.job_key)]
    assert await keys_of(place, state="activated", job_type=TYPE) == [int(running.job_key)]
    assert await keys_of(place, worker="w1") == [int(running.job_key)]
    assert await keys_of(place, worker="nobody") == []
    assert await keys_of(place, job_type=TYPE, state="PENDING") == [int(later), int(waiting)]
    assert await keys_of(place, job_type=TYPE, state="Activatable") == [int(waiting)]


async def test_totals_are_exact_for_type_and_state_and_counted_with_a_worker(place: Place) -> None:
    await place.create(job_type="other")
    await place.an_activated_job()
    for _ in range(3):
        await place.create()

    async def total(**fields: Any) -> int:
        return int((await place.call("ListJobs", limit=1, **fields)).total)

    assert [await total(), await total(job_type=TYPE), await total(state="PENDING")] == [5, 4, 4]
    assert [await total(job_type=TYPE, state="QUEUED"), await total(worker="w1")] == [3, 1]
    assert [await total(state="ACTIVATABLE"), await total(job_type="none")] == [4, 0]


async def test_sorts_by_retries_deadline_and_activation(place: Place) -> None:
    few, many = await place.an_activated_job(retries=2), await place.an_activated_job(retries=9)
    await place.call("UpdateJobTimeout", job_key=few.job_key, timeout=3_600_000)
    never = int(await place.create(retries=5))
    few_key, many_key = int(few.job_key), int(many.job_key)
    assert await keys_of(place, sort_by="retries") == [few_key, never, many_key]
    assert await keys_of(place, sort_by="retries", sort_desc=True) == [many_key, never, few_key]
    assert await keys_of(place, sort_by="deadline") == [many_key, few_key, never]
    assert await keys_of(place, sort_by="deadline", sort_desc=True) == [few_key, many_key, never]
    assert await keys_of(place, sort_by="activated_at", limit=1, offset=2) == [never]
    assert (await place.call("ListJobs", sort_by="retries", limit=2)).has_more


async def test_a_sort_that_does_not_see_all_matches_says_so(
    sqlite_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_pages, "SORTED_MAX", 10)
    keys = [int(await sqlite_place.create(retries=n)) for n in range(1, 13)]
    answer = await sqlite_place.call("ListJobs", sort_by="retries", limit=2)
    assert [int(job.job_key) for job in answer.jobs] == keys[2:4]
    assert "sorted by retries among the newest 10 matches only" in answer.message


async def test_counting_with_a_worker_stops(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_pages, "REACH_MAX", 20)
    for _ in range(25):
        await sqlite_place.create()
    await sqlite_place.activate(max_jobs_to_activate=100)
    assert (await sqlite_place.call("ListJobs", worker="w1")).total == 20
    assert (await sqlite_place.call("ListJobs")).total == 25


async def test_a_page_of_large_jobs_ends_before_the_message_is_too_large(sqlite_place: Place) -> None:
    keys = [int(await sqlite_place.create(variables={"a": "x" * 900_000})) for _ in range(4)][::-1]
    first = await sqlite_place.call("ListJobs")
    second = await sqlite_place.call("ListJobs", offset=len(first.jobs))
    assert first.has_more
    assert "go on at offset 1" in first.message
    assert first.ByteSize() <= 3 * 1024 * 1024
    assert [int(job.job_key) for job in [*first.jobs, *second.jobs]] == keys[: len(first.jobs) + len(second.jobs)]


async def test_a_job_at_every_limit_still_fits_into_a_message(sqlite_place: Place) -> None:
    place = sqlite_place
    large = '{"a":[' + ",".join(["1"] * 524_000) + "]}"
    job = await place.an_activated_job(variables_json=large, custom_headers={"h": "x" * 65_000})
    await place.call("CompleteJob", job_key=job.job_key, variables_json=large)
    answer = await place.call("GetJob", job_key=job.job_key)
    assert answer.ByteSize() <= 3 * 1024 * 1024
    assert (answer.job.variables_json, answer.job.result_json) == (large, large)
    assert "its variables stand in variables_json only" in answer.message


async def test_jobs_that_are_deleted_meanwhile_are_left_out(sqlite_place: Place) -> None:
    place = sqlite_place
    desk = Jobs(place.service, ANYBODY)
    kept, gone = int(await place.create()), int(await place.create())
    await place.service.cancel(gone)
    await place.service.delete(gone)
    assert [job and job.key for job in await desk.get_many([gone, kept])] == [None, kept]
