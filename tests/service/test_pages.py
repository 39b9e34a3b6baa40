"""Pages of an ordered list: a job that has moved since it was found is left to its new place."""

from __future__ import annotations

from everwork.core.job import StoredJob
from everwork.core.queries import JobFilter, Order, cursor_at
from everwork.core.states import State
from everwork.engines.portions import PageBuilder

QUERY = JobFilter(order=Order.DUE)


def a_job(key: int, run_at_ms: int) -> StoredJob:
    return StoredJob(key=key, type="t", state=State.PENDING, run_at_ms=run_at_ms)


def test_a_job_that_was_rescheduled_while_a_page_was_read_is_not_on_it() -> None:
    page = PageBuilder(QUERY, 10)
    assert page.keys([cursor_at(5, 1), cursor_at(6, 2)]) == [1, 2]
    page.add([a_job(1, 900), a_job(2, 6)], 0)
    assert [job.key for job in page.jobs] == [2]
    assert page.page().next == cursor_at(6, 2)
