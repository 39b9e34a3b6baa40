"""list by dedupe key and by a text in the variables: what is found, and how far one call looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from everwork.core.limits import LIST_SCAN_MAX, SEARCH_BYTES_MAX
from everwork.core.queries import JobFilter, Order
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from tests.conformance.observe import every_job
from tests.conformance.test_get_list import LARGE, STAGES
from tests.factories import TYPE, Stage, a_dead_letter, a_new_job, a_pending_job, a_scheduled_job, the_job

if TYPE_CHECKING:
    from everwork.engines.contract import Engine

KEY = "order-7"


async def found(engine: Engine, wanted: JobFilter) -> list[int]:
    """The keys that a filter shows, in its order."""
    return [job.key for job in await every_job(engine, wanted)]


# By dedupe key ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
async def test_a_job_is_found_by_its_dedupe_key_in_every_state(engine: Engine, stage: Stage) -> None:
    await stage(engine, type="other", dedupe_key="order-71")
    await stage(engine, type="third")
    job = await stage(engine, dedupe_key=KEY, tenant="acme")
    assert await found(engine, JobFilter(dedupe_key=KEY)) == [job.key]
    assert await found(engine, JobFilter(dedupe_key=KEY, states=frozenset({job.state}))) == [job.key]


async def test_one_dedupe_key_is_found_in_every_type_and_tenant_newest_first(engine: Engine) -> None:
    pairs = [("a", "acme"), ("a", "birch"), ("b", "acme")]
    keys = [(await a_pending_job(engine, type=type, tenant=tenant, dedupe_key=KEY)).key for type, tenant in pairs]
    assert await found(engine, JobFilter(dedupe_key=KEY)) == keys[::-1]
    assert await found(engine, JobFilter(dedupe_key=KEY, type="a")) == [keys[1], keys[0]]
    assert await found(engine, JobFilter(dedupe_key=KEY, tenants=("acme",))) == [keys[2], keys[0]]
    assert await found(engine, JobFilter(dedupe_key=KEY, type="a", tenants=("birch", "none"))) == [keys[1]]
    assert await found(engine, JobFilter(dedupe_key=KEY, type="c")) == []


@pytest.mark.parametrize("page", [1, 2])
async def test_a_dedupe_key_of_many_tenants_is_read_page_by_page(engine: Engine, page: int) -> None:
    made = [a_new_job(tenant=f"t{number}", dedupe_key=KEY) for number in range(5)]
    keys = [created.key for created in await engine.create(made)]
    assert [job.key for job in await every_job(engine, JobFilter(dedupe_key=KEY), page)] == keys[::-1]


async def test_a_dedupe_key_restricts_together_with_the_other_filters(engine: Engine) -> None:
    dead = await a_dead_letter(engine, dedupe_key=KEY, correlation_id="c", error="boom")
    await a_pending_job(engine, type="other", dedupe_key=KEY, correlation_id="d")
    both = JobFilter(dedupe_key=KEY, correlation_id="c", error_text="boom", states=frozenset({State.FAILED}))
    assert await found(engine, both) == [dead.key]
    assert await found(engine, JobFilter(dedupe_key=KEY, due=True, correlation_id="c")) == []


async def test_a_dedupe_key_is_found_in_every_order(engine: Engine) -> None:
    dead = await a_dead_letter(engine, type="a", dedupe_key=KEY)
    await a_dead_letter(engine, type="a")
    later = await a_scheduled_job(engine, type="b", dedupe_key=KEY)
    await a_pending_job(engine, type="b")
    assert await found(engine, JobFilter(dedupe_key=KEY, order=Order.FAILED)) == [dead.key]
    assert await found(engine, JobFilter(dedupe_key=KEY, order=Order.DUE)) == [later.key]


async def test_the_copies_of_a_group_have_no_dedupe_key(engine: Engine) -> None:
    await engine.add_group(TYPE, "audit")
    job = await a_pending_job(engine, dedupe_key=KEY)
    assert await found(engine, JobFilter(dedupe_key=KEY)) == [job.key]
    [copy] = await found(engine, JobFilter(group="audit"))
    assert (await the_job(engine, copy)).dedupe_key is None
    assert await found(engine, JobFilter(dedupe_key=KEY, group="audit")) == []


async def test_a_deleted_job_is_not_found_by_its_dedupe_key(engine: Engine) -> None:
    job = await a_dead_letter(engine, dedupe_key=KEY)
    await engine.delete([job.key])
    assert await found(engine, JobFilter(dedupe_key=KEY)) == []


async def test_a_dedupe_key_is_found_behind_more_jobs_than_one_call_scans(engine: Engine) -> None:
    job = await a_pending_job(engine, dedupe_key=KEY)
    await engine.create([a_new_job(delay_ms=60_000)] * (LIST_SCAN_MAX + 10))
    page = await engine.find(JobFilter(dedupe_key=KEY), 10)
    assert ([one.key for one in page.jobs], page.next) == ([job.key], None)


async def test_a_dedupe_key_in_too_many_types_and_tenants_is_refused_with_what_to_do(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [(await a_pending_job(engine, tenant=f"t{number}", dedupe_key=KEY)).key for number in range(3)]
    monkeypatch.setattr("everwork.engines.portions.LIST_SCAN_MAX", 2)
    with pytest.raises(InvalidInput, match="dedupe_key: would be searched in 3 types and tenants, more than 2"):
        await engine.find(JobFilter(dedupe_key=KEY), 10)
    assert await found(engine, JobFilter(dedupe_key=KEY, tenants=("t1",))) == keys[1:2]


# By a text in the variables -----------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
async def test_a_job_is_found_by_a_text_in_its_variables_in_every_state(engine: Engine, stage: Stage) -> None:
    await stage(engine, type="other", variables='{"to":"bob@example.org"}', headers='{"to":"ann@example.org"}')
    job = await stage(engine, variables='{"to":"ann@example.org","n":7}', correlation_id="c", limit_key="k")
    for text in ("ann@", '"to":"ann', '"n":7}', '{"to":"ann@example.org","n":7}'):
        assert await found(engine, JobFilter(variables_text=text)) == [job.key]


@pytest.mark.parametrize("text", ["ANN@", "a%n", "ann_example", "ann@example.orgs", "email-send", "correlated"])
async def test_a_text_in_the_variables_is_matched_exactly(engine: Engine, text: str) -> None:
    await a_pending_job(engine, variables='{"to":"ann@example.org"}', correlation_id="correlated")
    assert await found(engine, JobFilter(variables_text=text)) == []


@pytest.mark.parametrize("text", ["100%_", "Jürgen", "\U0001f600", "\\n", "'; DROP TABLE ew_job; --", "a\u0301"])
async def test_any_text_in_the_variables_is_found(engine: Engine, text: str) -> None:
    await a_pending_job(engine, variables='{"n":1}')
    job = await a_pending_job(engine, variables=f'{{"text":"<{text}>"}}')
    assert await found(engine, JobFilter(variables_text=f"<{text}>")) == [job.key]


async def test_other_variables_of_a_requeued_job_are_searched(engine: Engine) -> None:
    job = await a_dead_letter(engine, variables='{"to":"ann"}')
    await engine.requeue([job.key], variables='{"to":"bob"}')
    assert await found(engine, JobFilter(variables_text='"ann"')) == []
    assert await found(engine, JobFilter(variables_text='"bob"')) == [job.key]


async def test_a_text_in_the_variables_restricts_together_with_the_other_filters(engine: Engine) -> None:
    variables = '{"to":"ann"}'
    await a_pending_job(engine, variables=variables)
    await a_dead_letter(engine, type="a", variables=variables, tenant="birch")
    job = await a_dead_letter(engine, type="a", variables=variables, tenant="acme")
    await a_dead_letter(engine, type="a", variables='{"to":"bob"}', tenant="acme")
    wanted = JobFilter(variables_text="ann", type="a", tenants=("acme",), states=frozenset({State.FAILED}))
    assert await found(engine, wanted) == [job.key]
    assert await found(engine, JobFilter(variables_text="ann", order=Order.FAILED, tenants=("acme",))) == [job.key]


async def test_a_search_in_large_variables_stops_at_its_limit_and_says_how_far_it_looked(engine: Engine) -> None:
    jobs = SEARCH_BYTES_MAX // len(LARGE) + 40
    keys = [created.key for created in await engine.create([a_new_job(variables='{"to":"ann"}')])]
    for _ in range(jobs // 20):
        keys += [created.key for created in await engine.create([a_new_job(variables=LARGE)] * 20)]
    page = await engine.find(JobFilter(variables_text='"ann"'), 10)
    assert page.jobs == []
    assert page.next is not None
    assert keys[0] < page.next <= keys[-1]
    assert await found(engine, JobFilter(variables_text='"ann"')) == keys[:1]
