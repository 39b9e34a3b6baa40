"""What programs do to jobs is in the audit log, too: the calls of a minute in one entry, which counts them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everwork.engines.contract import Engine
from everwork.exceptions import EngineUnavailable, JobNotFound
from everwork.service.access import audit
from everwork.service.access.audit import (
    SEVERAL_ORIGINS,
    TALLIES_MAX,
    TALLY_ENTRIES_MAX,
    TALLY_KEYS_MAX,
    TALLY_MS,
    Audit,
)
from everwork.service.access.principal import Permission, Principal
from everwork.service.jobs import Jobs
from everwork.service.service import JobService
from everwork.service.verb import Caller
from tests.app.waiting import until
from tests.factories import a_new_job, a_pending_job
from tests.stores import START_MS, VirtualClock

Entry = tuple[str, str, dict[str, Any]]


@pytest.fixture
async def counted(service: JobService, clock: VirtualClock) -> AsyncIterator[JobService]:
    """A service whose audit log has the test's clock."""
    service.audit = Audit(service._engine, clock, clock)
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
    assert {(action, target) for action, target, _ in await entries(counted)} == {("jobs.cancel", "*")}
    details = [detail for _, _, detail in await entries(counted)]
    assert [(detail["changed"], detail["reason"]) for detail in details] == [(100, "not needed")] * 2 + [
        (50, "not needed")
    ]
    assert sorted(key for detail in details for key in detail["keys"]) == sorted(map(str, keys))
    assert (len(written), len(set(written))) == (6, 3)
    clock.advance(ms=TALLY_MS)
    [last] = await keys_of(counted, 1)
    await jobs.cancel(last)
    assert (await entries(counted))[3:] == [("jobs.cancel", str(last), {})]


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
    assert (await entries(counted))[1][2] == {"priority": 5, "changed": 2, "keys": [str(keys[3])]}
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


async def test_a_change_whose_entry_could_not_be_written_at_once_is_recorded_later(
    engine: Engine, counted: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    [key], register, tries = await keys_of(counted, 1), engine.register, itertools.count()

    async def away_once(*arguments: Any) -> Any:
        if next(tries) == 0:
            raise EngineUnavailable("away")
        return await register(*arguments)

    monkeypatch.setattr(engine, "register", away_once)
    with pytest.raises(EngineUnavailable):
        await program(counted).cancel(key, "not needed")
    await counted.close_audit()
    assert await entries(counted) == [("jobs.cancel", str(key), {"reason": "not needed"})]


async def test_many_changes_of_one_job_do_not_hide_another(counted: JobService) -> None:
    first, second = await keys_of(counted, 2)
    for _ in range(TALLY_KEYS_MAX):
        await program(counted).set_priority(first, 5)
    await program(counted).set_priority(second, 5)
    await counted.audit.close()
    [(_, _, detail)] = await entries(counted)
    assert detail == {"priority": 5, "changed": TALLY_KEYS_MAX + 1, "keys": [str(first), str(second)]}


async def test_a_program_that_changes_very_many_jobs_fills_some_entries_and_then_they_are_only_counted(
    counted: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "TALLY_KEYS_MAX", 2)
    keys = await keys_of(counted, 2 * TALLY_ENTRIES_MAX + 3)
    for key in keys:
        await program(counted).cancel(key)
    await counted.audit.close()
    details = [detail for _, _, detail in await entries(counted)]
    assert [detail["changed"] for detail in details] == [2] * (TALLY_ENTRIES_MAX - 1) + [5]
    assert [key for detail in details for key in detail["keys"]] == [str(key) for key in keys[:-3]]


async def test_however_many_addresses_a_key_is_used_from_few_tallies_are_kept(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kept(*_: Any) -> None:
        pass

    monkeypatch.setattr(engine, "register", kept)
    log, who = Audit(engine, clock, clock), Principal("k1", "ci", frozenset([Permission.JOBS]))
    for number in range(5_000):
        await log.record_call(who, "jobs.cancel", str(number), f"10.0.{number // 256}.{number % 256}", {})
    assert len(log._tallies) == TALLIES_MAX + 1
    shared = log._tallies["k1", "jobs.cancel", SEVERAL_ORIGINS]
    assert (shared.number, shared.calls > TALLY_KEYS_MAX) == (TALLY_ENTRIES_MAX, True)
    clock.advance(ms=TALLY_MS)
    await log.record_call(who, "jobs.cancel", "1", "10.1.0.0", {})
    assert list(log._tallies) == [("k1", "jobs.cancel", "10.1.0.0")]
    await log.close()


async def test_a_clock_that_is_set_back_does_not_prolong_a_minute_and_an_entry_has_the_time_of_its_first_call(
    engine: Engine, service: JobService, clock: VirtualClock
) -> None:
    host, keys = VirtualClock(), await keys_of(service, 3)
    log = service.audit = Audit(engine, host, clock)
    await program(service).cancel(keys[0])
    host.advance(ms=5_000)
    await program(service).cancel(keys[1])
    await log.close()
    host.advance(ms=-3_600_000)
    clock.advance(ms=TALLY_MS)
    await program(service).cancel(keys[2])
    found = [(one.at_ms - START_MS, one.target) for one in await log.last(10)]
    assert found == [(0, "*"), (5_000 - 3_600_000, str(keys[2]))]


async def test_each_change_of_a_person_has_an_entry_of_its_own(counted: JobService) -> None:
    principal = Principal("k1", "ann", frozenset([Permission.JOBS]))
    jobs = Jobs(counted, Caller(principal, "10.0.0.7", is_person=True))
    keys = await keys_of(counted, 3)
    for key in keys:
        await jobs.cancel(key)
    assert [target for _, target, _ in await entries(counted)] == [str(key) for key in keys]
