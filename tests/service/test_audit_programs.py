"""What programs do to jobs is in the audit log, too: the calls of a minute in one entry, which counts them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, JobNotFound
from everwork.service.access import audit
from everwork.service.access.audit import TALLY_KEYS_MAX, TALLY_MS, Audit
from everwork.service.access.principal import Permission, Principal
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import Caller
from tests.app.waiting import until
from tests.factories import a_new_job, a_pending_job
from tests.stores import VirtualClock

Entry = tuple[str, str, dict[str, Any]]


@pytest.fixture
async def counted(service: JobService, clock: VirtualClock) -> AsyncIterator[JobService]:
    """A service whose audit log has the test's clock."""
    service.audit = Audit(service._engine, clock)
    yield service
    await service.audit.close()


def program(service: JobService, id: str = "k1", origin: str = "10.0.0.7") -> Jobs:
    """What a program does with its key."""
    return Jobs(service, Caller(Principal(id, "ci", frozenset([Permission.JOBS])), origin))


async def keys_of(service: JobService, many: int) -> list[int]:
    """The keys of new jobs."""
    return [one.key for one in await service.create([a_new_job() for _ in range(many)])]


async def entries(service: JobService) -> list[Entry]:
    """The log, oldest first."""
    return [(one.action, one.target, dict(one.detail)) for one in reversed(await service.audit.last(100))]


@pytest.mark.every_engine
async def test_a_single_change_is_on_record_when_it_is_answered(engine: Engine, counted: JobService) -> None:
    job, jobs = await a_pending_job(engine), program(counted)
    await jobs.set_priority(job.key, 7)
    await jobs.set_retries(job.key, 2)
    await jobs.reschedule(job.key, delay_ms=5)
    await jobs.run_now(job.key)
    await jobs.cancel(job.key, "not needed")
    key = str(job.key)
    assert await entries(counted) == [
        ("jobs.priority", key, {"priority": 7}),
        ("jobs.retries", key, {"retries": 2}),
        ("jobs.reschedule", key, {"delay_ms": 5}),
        ("jobs.run-now", key, {}),
        ("jobs.cancel", key, {"reason": "not needed"}),
    ]


@pytest.mark.every_engine
async def test_the_changes_of_a_minute_share_an_entry_and_few_writes(
    engine: Engine, counted: JobService, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, register = [], engine.register

    async def noted(*arguments: Any) -> Any:
        written.append(arguments[1])
        return await register(*arguments)

    monkeypatch.setattr(engine, "register", noted)
    monkeypatch.setattr(audit, "WRITE_SECONDS", 3_600.0)
    keys, jobs = await keys_of(counted, 250), program(counted)
    await asyncio.gather(*(jobs.cancel(key, "not needed") for key in keys))
    await counted.audit.close()
    [(action, target, detail)] = await entries(counted)
    assert (action, target) == ("jobs.cancel", "*")
    assert (detail["changed"], detail["reason"]) == (250, "not needed")
    assert len(set(detail["keys"]) & {str(key) for key in keys}) == len(detail["keys"]) == TALLY_KEYS_MAX
    assert (len(written), len(set(written))) == (2, 1)
    clock.advance(ms=TALLY_MS)
    [last] = await keys_of(counted, 1)
    await jobs.cancel(last)
    assert (await entries(counted))[1:] == [("jobs.cancel", str(last), {})]


async def test_an_entry_is_of_one_key_one_action_and_one_origin(counted: JobService) -> None:
    keys = await keys_of(counted, 5)
    await program(counted).cancel(keys[0])
    await program(counted).cancel(keys[1])
    await program(counted).set_priority(keys[2], 5)
    await program(counted, origin="10.0.0.8").cancel(keys[3])
    await program(counted, id="k2").cancel(keys[4])
    await counted.audit.close()
    found = [(one.key_id, one.origin, one.action, one.target) for one in reversed(await counted.audit.last(10))]
    assert found == [
        ("k1", "10.0.0.7", "jobs.cancel", "*"),
        ("k1", "10.0.0.7", "jobs.priority", str(keys[2])),
        ("k1", "10.0.0.8", "jobs.cancel", str(keys[3])),
        ("k2", "10.0.0.7", "jobs.cancel", str(keys[4])),
    ]


async def test_only_details_in_which_all_calls_agree_are_kept_and_none_that_are_long(counted: JobService) -> None:
    keys, jobs = await keys_of(counted, 4), program(counted)
    await jobs.cancel(keys[0], "of a tenant that left")
    await jobs.cancel(keys[1], "of another")
    await jobs.cancel(keys[2], "of another")
    await counted.audit.close()
    assert await entries(counted) == [("jobs.cancel", "*", {"changed": 3, "keys": [str(key) for key in keys[:3]]})]
    other = program(counted, id="k2")
    await other.set_priority(keys[3], 5)
    with pytest.raises(JobNotFound):
        await other.set_priority(10**6, 5)
    await other.set_priority(keys[3], 5)
    await counted.audit.close()
    assert (await entries(counted))[1][2] == {"priority": 5, "changed": 2, "keys": [str(keys[3])] * 2}
    third = program(counted, id="k3")
    for key in await keys_of(counted, 2):
        await third.cancel(key, "错" * 8_000)
    await counted.audit.close()
    assert (await entries(counted))[2][2].keys() == {"changed", "keys"}


async def test_an_entry_is_written_again_within_a_second_and_when_the_service_is_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "WRITE_SECONDS", 0.01)
    service = JobService(engine, "holder")
    jobs, keys = program(service), await keys_of(service, 4)
    for key in keys[:2]:
        await jobs.cancel(key)

    async def changed() -> int:
        [(_, _, detail)] = await entries(service)
        return int(detail.get("changed", 1))

    async def both() -> bool:
        return await changed() == 2

    await until(both)
    monkeypatch.setattr(audit, "WRITE_SECONDS", 3_600.0)
    for key in keys[2:]:
        await jobs.cancel(key)
    assert await changed() == 2
    await service.close_audit()
    assert await changed() == 4


async def test_what_was_counted_is_written_after_an_outage(
    engine: Engine, counted: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, keys = program(counted), await keys_of(counted, 2)
    await jobs.cancel(keys[0])
    register, tries = engine.register, []

    async def away_at_first(*arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) < 3:
            raise EngineUnavailable("away")
        return await register(*arguments)

    monkeypatch.setattr(engine, "register", away_at_first)
    await jobs.cancel(keys[1])
    await counted.audit.close()
    assert (len(tries), (await entries(counted))[0][2]["changed"]) == (3, 2)


async def test_each_change_of_a_person_has_an_entry_of_its_own(counted: JobService) -> None:
    principal = Principal("k1", "ann", frozenset([Permission.JOBS]))
    jobs = Jobs(counted, Caller(principal, "10.0.0.7", is_person=True))
    keys = await keys_of(counted, 3)
    for key in keys:
        await jobs.cancel(key)
    assert [target for _, target, _ in await entries(counted)] == [str(key) for key in keys]
