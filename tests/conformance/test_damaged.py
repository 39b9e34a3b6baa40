"""Damage in the store affects only the damaged job or record: claims, pages, searches and sweeps continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from everwork.core.leasing import Verdict
from everwork.core.outcome import Failed
from everwork.core.queries import JobFilter
from everwork.core.states import State
from tests.damage import NOT_JSON, NOT_UTF8, StoreDamage
from tests.factories import a_new_job, a_pending_job, asked, the_job, the_state
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from tests.stores import VirtualClock


@pytest.fixture
def damage(engine: Engine, engine_name: str, tmp_path: Path) -> StoreDamage:
    """Damages the engine's store."""
    return StoreDamage(url_of(engine_name, tmp_path))


BYTES = pytest.mark.parametrize("raw", [NOT_JSON, NOT_UTF8], ids=["not JSON", "not UTF-8"])


async def three(engine: Engine) -> list[StoredJob]:
    return [await a_pending_job(engine, variables=f'{{"n":{number}}}') for number in range(3)]


def is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


@BYTES
@pytest.mark.every_way("sqlite-own-loop")
async def test_a_job_with_damaged_variables_is_leased_with_the_others_and_can_be_failed(
    engine: Engine, damage: StoreDamage, raw: bytes
) -> None:
    jobs = await three(engine)
    damage.spoil_job(jobs[1].key, "variables", raw)
    leased = (await asked(engine)).jobs
    assert [job.key for job in leased] == [job.key for job in jobs]
    readable = raw == NOT_UTF8 and damage.keeps_utf8
    assert [is_json(job.variables) for job in leased] == [True, readable, True]
    [judged] = (await engine.settle([Failed(jobs[1].key, 1, "damaged", final=True)])).judged
    assert (judged.verdict, await the_state(engine, jobs[1].key)) == (Verdict.ACCEPTED, State.FAILED)


@BYTES
async def test_a_page_and_a_search_show_the_others_and_what_can_be_read_of_it(
    engine: Engine, damage: StoreDamage, raw: bytes
) -> None:
    jobs = await three(engine)
    damage.spoil_job(jobs[1].key, "variables", raw)
    page = await engine.find(JobFilter(), 10)
    assert [job.key for job in page.jobs] == [job.key for job in reversed(jobs)]
    assert (await the_job(engine, jobs[1].key)).variables.startswith('{"to":')
    found = await engine.find(JobFilter(variables_text='"n":2'), 10)
    assert [job.key for job in found.jobs] == [jobs[2].key]


@BYTES
async def test_a_sweep_ends_the_lease_of_a_damaged_job_and_of_the_others(
    engine: Engine, damage: StoreDamage, raw: bytes, clock: VirtualClock
) -> None:
    jobs = await three(engine)
    await asked(engine)
    damage.spoil_job(jobs[1].key, "variables", raw)
    clock.advance(seconds=31)
    assert (await engine.sweep("s")).lapsed == 3
    assert [record.job.key for record in await engine.dump(0, 10)] == [job.key for job in jobs]


async def test_a_damaged_policy_of_a_job_or_type_is_the_default_one(engine: Engine, damage: StoreDamage) -> None:
    await engine.create([a_new_job()])
    await engine.set_policy("email-send", '{"max_attempts":')
    [job] = (await asked(engine)).jobs
    assert (await engine.settle([Failed(job.key, 1, "boom")])).judged[0].verdict is Verdict.ACCEPTED
