"""What a courier does with entries that the store, or this version, does not take; and with copies of a spool."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Demand, Judged, Stamp
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.core.outcome import Complete, Outcome
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.exceptions import EngineUnavailable, InvalidInput, PermissionDenied
from everwork.service.store_access import StoreAccess
from everwork.spool import contents
from everwork.spool.file import SpoolFile
from everwork.spool.outbox import Outbox
from everwork.spool.settings import Offline
from tests.spool.kit import (
    DEADLINE_S,
    counts,
    courier,
    deliver,
    kept,
    numbered,
    offline_in,
    texts,
    the_store,
    variables,
)

GOOD = numbered(1, 1_000)


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    return offline_in(tmp_path)


def change(offline: Offline, sql: str) -> None:
    """Change the file as another version, or another hand, would."""
    with closing(sqlite3.connect(offline.spool.path)) as db, db:
        db.execute(sql)


def reasons(offline: Offline) -> list[str | None]:
    """Why entries are set aside."""
    file = SpoolFile(offline.spool, None)
    try:
        return [entry.reason for entry in contents.entries(file, 10_000) if entry.is_aside]
    finally:
        file.close()


class Choosy(StoreAccess):
    """A store that has something against one tenant, as a server has whose key is bound to others."""

    async def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> list[Created]:
        """Create jobs unless one is of that tenant."""
        if any(job.tenant == "stranger" for job in jobs):
            raise PermissionDenied("this key may not create jobs for tenant 'stranger'")
        return await super().create_stamped(jobs, stamp)


class Forgetful(StoreAccess):
    """A store that creates jobs, but whose first answer is lost."""

    is_lost = True

    async def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> list[Created]:
        """Create them."""
        created = await super().create_stamped(jobs, stamp)
        if self.is_lost:
            self.is_lost = False
            raise EngineUnavailable("connection lost")
        return created


class Watched(StoreAccess):
    """A store that notes how many outcomes it is sent at a time."""

    def __init__(self, engine: Engine, holder: str) -> None:
        super().__init__(engine, holder)
        self.sizes: list[int] = []

    async def settle_late(self, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Settle them."""
        self.sizes.append(len(outcomes))
        return await super().settle_late(outcomes)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (NewJob("work", '{"text":"' + "x" * PAYLOAD_BYTES_MAX + '"}'), "variables: must be at most 1,048,576 bytes"),
        (NewJob("work", priority=10_000), "priority: must be a whole number from -512 to 511, not 10000"),
        (NewJob("work", tenant="a\nb"), "tenant: must"),
        (NewJob("work", "[1]"), "variables: must be a JSON object"),
        (NewJob("work", tenant="stranger"), "this key may not create jobs for tenant 'stranger'"),
    ],
    ids=["over-long", "priority", "tenant", "no object", "refused by the store"],
)
async def test_a_bad_job_among_a_thousand_is_set_aside_and_the_others_are_delivered_in_order(
    offline: Offline, bad: NewJob, reason: str
) -> None:
    kept(offline, [*GOOD[:640], bad, *GOOD[640:]])
    async with the_store(offline) as store, courier(offline, Choosy(store._engine, "choosy")) as made:
        await made.deliver()
    assert await variables(offline) == texts(GOOD)
    assert counts(offline) == (0, 0, 1)
    [found] = reasons(offline)
    assert found is not None
    assert found.startswith(reason)


async def test_jobs_with_fields_of_another_version_are_set_aside_wherever_they_are(offline: Offline) -> None:
    kept(offline, GOOD)
    foreign = "UPDATE job SET body = json_insert(body, '$.colour', 'red') WHERE id IN (1, 500, 501, 502, 1000)"
    change(offline, foreign)
    await deliver(offline)
    at = {0, 499, 500, 501, 999}
    assert await variables(offline) == texts([job for number, job in enumerate(GOOD) if number not in at])
    assert reasons(offline) == ["was written by another version of Everwork: unknown field 'colour'"] * 5


async def test_outcomes_of_another_version_are_set_aside_and_the_others_are_reported(offline: Offline) -> None:
    async with the_store(offline) as store:
        await store._engine.create(numbered(1, 3))
        leased = (await store._engine.activate([Demand("work", "worker", 3, 60_000)])).jobs
    file = SpoolFile(*offline)
    file.keep_outcomes([Complete(job.key, job.attempt) for job in leased])
    file.close()
    change(
        offline,
        "UPDATE outcome SET body = json_set(body, '$.kind', 'dance') WHERE key = (SELECT min(key) FROM outcome)",
    )
    made = await deliver(offline)
    assert made.reported == 2
    assert counts(offline) == (0, 0, 1)
    assert reasons(offline) == ["was written by another version of Everwork: an outcome of an unknown kind"]


async def test_large_outcomes_are_reported_in_parts_and_those_that_cannot_be_read_do_not_stop_the_others(
    offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everwork.spool.courier.BATCH_BYTES", 1_000)
    async with the_store(offline) as store:
        await store._engine.create(numbered(1, 6))
        leased = (await store._engine.activate([Demand("work", "worker", 6, 60_000)])).jobs
        file = SpoolFile(*offline)
        file.keep_outcomes([Complete(job.key, job.attempt, f'"{"x" * 400}"') for job in leased])
        file.close()
        change(offline, "UPDATE outcome SET body = 'damaged' || body WHERE key IN (1, 2)")
        watched = Watched(store._engine, "watched")
        async with courier(offline, watched) as made:
            await made.deliver()
    assert watched.sizes == [2, 2]
    assert (made.reported, counts(offline)) == (4, (0, 0, 2))


async def test_a_batch_in_doubt_that_cannot_be_read_is_set_aside_whole_and_not_doubled_when_it_can(
    offline: Offline,
) -> None:
    kept(offline, numbered(1, 3))
    async with the_store(offline) as store:
        async with courier(offline, Forgetful(store._engine, "forgetful")) as made:
            with pytest.raises(EngineUnavailable):
                await made.deliver()
        change(offline, "UPDATE job SET body = json_insert(body, '$.colour', 'red') WHERE id = 2")
        await deliver(offline)
        assert counts(offline) == (0, 0, 3)
        change(offline, "UPDATE job SET body = json_remove(body, '$.colour') WHERE id = 2")
        file = SpoolFile(*offline)
        assert contents.retry_aside(file) == 3
        file.close()
        await deliver(offline)
    assert counts(offline) == (0, 0, 0)
    assert await variables(offline) == texts(numbered(1, 3))


async def test_a_job_that_expired_in_the_spool_is_created_and_cancelled(offline: Offline) -> None:
    kept(offline, [NewJob("work", expires_at_ms=1_000_000_000_000)])
    await deliver(offline)
    async with the_store(offline) as store:
        await store.sweep()
        [job] = (await store._engine.find(JobFilter(), 10)).jobs
    assert job.state is State.CANCELLED


async def test_part_of_a_batch_in_doubt_cannot_be_dropped(offline: Offline) -> None:
    kept(offline, numbered(1, 3))
    async with the_store(offline) as store, courier(offline, Forgetful(store._engine, "forgetful")) as made:
        with pytest.raises(EngineUnavailable):
            await made.deliver()
        file = SpoolFile(*offline)
        ids = [entry.id for entry in contents.entries(file, 10)]
        with pytest.raises(InvalidInput, match=r"part of a batch in doubt: .* delete its other 2 jobs"):
            contents.drop(file, ids[:1])
        assert contents.drop(file, ids) == ids
        file.close()
        await made.deliver()
    assert len(await variables(offline)) == 3


async def test_a_copy_of_a_spool_loses_nothing_to_the_original(tmp_path: Path) -> None:
    """As in the image of a machine or container that was taken while a spool was in it."""
    offline = offline_in(tmp_path)
    kept(offline, numbered(1, 1))
    await deliver(offline)
    copy = Offline(offline.spool.__class__(str(tmp_path / "copy.db")), offline.store)
    shutil.copy(offline.spool.path, copy.spool.path)
    kept(offline, numbered(2, 2))
    await deliver(offline)
    kept(copy, numbered(3, 3))
    await deliver(copy)
    assert await variables(offline) == texts(numbered(1, 3))


async def test_a_batch_in_doubt_that_is_too_old_is_set_aside_and_says_so(tmp_path: Path) -> None:
    offline = offline_in(tmp_path, max_age=1)
    kept(offline, numbered(1, 2))
    change(offline, "UPDATE job SET boot_ms = boot_ms - 5000")
    await deliver(offline)
    assert reasons(offline) == ["not delivered within 1 s"] * 2
    change(offline, "UPDATE job SET state = 0, producer = 'somebody', number = 7")
    await deliver(offline)
    assert reasons(offline) == ["not delivered within 1 s; it may have been created"] * 2
    assert await variables(offline) == []


async def test_a_stamp_that_the_store_knows_as_outdated_is_not_sent_under_another(offline: Offline) -> None:
    kept(offline, numbered(1, 2))
    change(offline, "UPDATE job SET producer = 'shop', number = 1")
    async with the_store(offline) as store:
        await store.create_stamped(numbered(1, 2), Stamp("shop", 1))
        await store.create_stamped(numbered(3, 3), Stamp("shop", 2))
    await deliver(offline)
    assert await variables(offline) == texts(numbered(1, 3))
    assert reasons(offline) == ["superseded by later jobs from its producer; it may have been created"] * 2


async def test_a_spool_that_was_bound_to_another_store_is_not_delivered_to_the_former_one(
    offline: Offline, tmp_path: Path
) -> None:
    kept(offline, numbered(1, 1))
    async with the_store(offline) as store, courier(offline, store) as made:
        file = SpoolFile(offline.spool, None)
        contents.move_to(file, f"sqlite:///{tmp_path}/other.db")
        with pytest.raises(EngineUnavailable, match=r"now belongs to sqlite:///.*other.db; restart this process"):
            await made.deliver()
        file.close()
    assert await variables(offline) == []


def test_a_job_that_cannot_be_read_belongs_to_no_tenant(offline: Offline) -> None:
    kept(offline, [NewJob("work", tenant="acme")] * 2)
    change(offline, "UPDATE job SET body = 'damaged' WHERE id = 2")
    file = SpoolFile(*offline)
    assert [file.tenant_of(f"{file.id}-{number}") for number in (1, 2, 3)] == ["acme", "", None]
    file.close()


class Absent(StoreAccess):
    """A store that is away at first."""

    is_away = True

    async def connect(self) -> None:
        """Open it, once it is there."""
        if self.is_away:
            raise EngineUnavailable("away")
        await super().connect()


async def test_a_declaration_that_the_store_refuses_does_not_keep_jobs_in_the_spool(offline: Offline) -> None:
    async def declare() -> None:
        raise InvalidInput("breaker_seconds", "is required with breaker_failures")

    store = Absent(open_engine(offline.store), "absent")
    outbox = Outbox(offline, store)
    await outbox.open()
    await outbox.once_connected(declare)
    [spooled] = await outbox.create(numbered(1, 1))
    store.is_away = False
    async with asyncio.timeout(DEADLINE_S):
        await outbox.delivered(spooled.spool_id, wait=True)
    await outbox.close()
    await store._engine.close()
    assert await variables(offline) == texts(numbered(1, 1))
