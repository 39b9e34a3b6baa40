"""everwork doctor: what a store is, how it answers, and what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.service.doctor import examine
from everwork.service.store_copy import COPY_KIND
from tests.factories import (
    TYPE,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    a_scheduled_job,
    asked,
)
from tests.stores import DAY_MS, START_MS, open_store, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from everwork.service.doctor import Finding
    from tests.cli.conftest import Cli
    from tests.stores import VirtualClock


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """A store that nobody has opened yet."""
    return url_of(engine_name, tmp_path)


@pytest.fixture
async def store(engine_name: str, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A store whose clock the test moves."""
    opened = await open_store(engine_name, tmp_path, clock)
    yield opened
    await opened.close()


async def found(store: Engine, clock: VirtualClock) -> list[Finding]:
    """The findings about the contents of a store, without those about durability and the speed of the machine."""
    findings = (await examine(store, clock)).findings
    return [one for one in findings if "may be lost" not in one.text and "the engine is slow" not in one.text]


# The command --------------------------------------------------------------------------------------------


async def test_the_command_tells_what_the_store_is_and_holds(cli: Cli, url: str) -> None:
    engine = open_engine(url)
    await engine.open()
    await a_completed_job(engine)
    health = await engine.health()
    await engine.close()
    answer = cli("doctor", url)
    assert answer.err == ""
    for words in (f"{health.engine} {health.version}", health.durability.value, "round trip     read ", "1 completed"):
        assert words in answer.out


async def test_the_command_answers_in_json(cli: Cli, engine: Engine) -> None:
    await a_completed_job(engine)
    report: dict[str, Any] = cli("doctor", "--json").json
    assert (report["engine"], report["schema_version"], report["durability"]) == ("sqlite", 6, "power-loss")
    assert (report["ok"], report["problems"], report["jobs"]["completed"]) == (True, [], 1)
    assert report["settings"]["path"] == str(cli.file)


async def test_the_command_ends_with_1_if_something_is_wrong(cli: Cli, engine: Engine) -> None:
    await a_pending_job(engine)
    answer = cli("doctor")
    assert answer.code == 1
    [problem] = [line for line in answer.out.splitlines() if line.startswith("problem")]
    assert f"no worker has polled for type '{TYPE}' yet; 1 job is waiting, the oldest since 20" in problem
    assert problem.endswith(": start a worker for this type, or cancel the jobs")


def test_a_store_that_is_not_there_is_told_and_not_created(cli: Cli) -> None:
    answer = cli("doctor")
    assert (answer.code, "does not exist" in answer.complaint) == (2, True)
    assert list(cli.folder.iterdir()) == []


def test_passwords_are_not_shown(cli: Cli) -> None:
    for url in ("postgresql://ann:s3cret@127.0.0.1:1/jobs", "redis://:s3cret@127.0.0.1:1/0"):
        answer = cli("doctor", url)
        assert answer.code == 2
        assert "s3cret" not in answer.complaint


# What it finds --------------------------------------------------------------------------------------------


async def test_a_store_in_good_order_has_nothing_to_tell(store: Engine, clock: VirtualClock) -> None:
    await a_completed_job(store)
    await a_scheduled_job(store, type="later")
    await a_processing_job(store)
    diagnosis = await examine(store, clock)
    assert await found(store, clock) == []
    assert diagnosis.counts[State.PENDING] == diagnosis.counts[State.PROCESSING] == 1
    assert (diagnosis.trips.clock_off_ms, await store.registered(None)) == (0, [])


async def test_leases_that_nobody_takes_away_are_a_problem(store: Engine, clock: VirtualClock) -> None:
    await a_processing_job(store, lease_ms=1_000)
    clock.advance(seconds=10)
    [finding] = await found(store, clock)
    assert (
        finding.is_problem,
        finding.text.startswith("1 expired lease not swept yet, the oldest expired at 2023-"),
    ) == (True, True)


async def test_due_jobs_that_nobody_asks_for_are_a_problem(store: Engine, clock: VirtualClock) -> None:
    await asked(store)
    await a_pending_job(store)
    assert await found(store, clock) == []
    clock.advance(seconds=90)
    [finding] = await found(store, clock)
    assert finding.is_problem
    assert finding.text.startswith(f"no worker has polled for type '{TYPE}' since 2023-11-14T")
    assert "; 1 job is waiting, the oldest since 2023-11-14T" in finding.text


async def test_a_paused_type_is_a_note(store: Engine, clock: VirtualClock) -> None:
    await a_pending_job(store)
    await store.pause(TYPE, True)
    assert await found(store, clock) == [(False, f"type '{TYPE}' is paused; 1 job is waiting", "resume it to run them")]


async def test_dead_letters_are_a_note(store: Engine, clock: VirtualClock) -> None:
    await a_dead_letter(store)
    [finding] = await found(store, clock)
    assert (finding.is_problem, finding.text) == (False, "1 failed job (dead letters and rejected jobs)")


async def test_a_clock_that_is_off_is_a_problem(store: Engine) -> None:
    [finding] = [one for one in (await examine(store, lambda: START_MS + DAY_MS)).findings if "clock" in one.text]
    assert (finding.is_problem, finding.text) == (True, "the engine's clock differs from this host's by -86400.0 s")


async def test_a_copy_that_was_not_finished_is_a_problem(store: Engine, clock: VirtualClock) -> None:
    await store.register(COPY_KIND, "sqlite:///old.db", "{}")
    [finding] = await found(store, clock)
    assert (finding.is_problem, "a copy from sqlite:///old.db into this store" in finding.text) == (True, True)
