"""everwork types and groups, and the changes of jobs that came with them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from everwork.codec.json import decode_policy
from everwork.core.retry import RetryPolicy
from everwork.engines.open import open_engine
from tests.factories import (
    TYPE,
    a_cancelled_job,
    a_completed_job,
    a_dead_letter,
    a_pending_job,
    a_processing_job,
    asked,
    the_job,
)
from tests.stores import HOUR_MS, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """A store that nobody has opened yet."""
    return url_of(engine_name, tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Engine]:
    """The test's own engine on that store, of any kind."""
    opened = open_engine(url)
    await opened.open()
    yield opened
    await opened.close()


# Types --------------------------------------------------------------------------------------------------


async def test_a_type_is_paused_shown_and_resumed_on_every_engine(cli: Cli, url: str, store: Engine) -> None:
    await a_pending_job(store)
    assert cli("types", "pause", TYPE, "--engine", url).out == f"{TYPE}: paused\n"
    [shown] = cli("types", "list", "--json", "--engine", url).json["types"]
    assert (shown["type"], shown["paused"], shown["jobs"]["pending"]) == (TYPE, True, 1)
    assert "paused" in cli("types", "list", "--engine", url).out
    assert cli("types", "resume", TYPE, "--json", "--engine", url).json == {"type": TYPE, "paused": False}
    assert [info.paused for info in await store.types()] == [False]


async def test_a_policy_is_changed_in_parts_and_cleared(cli: Cli, engine: Engine) -> None:
    assert cli("types", "policy", "email-send", "--max-attempts", "9", "--base", "2.5").code == 0
    assert cli("types", "policy", "email-send", "--cap", "60").out == (
        "email-send: max_attempts 9, base 2.5, factor 2, cap 60, jitter 0\n"
    )
    [info] = await engine.types()
    assert decode_policy(info.policy).retry == RetryPolicy(9, base=2.5, cap=60)
    report = cli("types", "policy", "email-send", "--json").json
    assert (report["default"], report["policy"]["max_attempts"]) == (False, 9)
    assert cli("types", "policy", "email-send", "--clear").out.endswith("(default)\n")
    assert [info.policy for info in await engine.types()] == [None]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["policy", "x", "--max-attempts", "0"], "max_attempts: must be a whole number from 1 to 100, not 0"),
        (["policy", "x", "--jitter", "2"], "jitter: must be a number from 0 to 1, not 2"),
        (["policy", "x", "--factor", "much"], "factor: must be a number from 1 to 100, not 'much'"),
        (["policy", "x", "--clear", "--base", "1"], "clear: cannot be combined with base"),
        (["policy", "x", "--rate", "0/5"], "rate_jobs: must be a whole number from 1 to 1000000, not 0"),
        (["policy", "x", "--breaker-failures", "0"], "breaker_failures: must be a whole number from 1 to 1000, not 0"),
        (["policy", "x", "--error", "never"], "error: must be STRATEGY=text:PART or STRATEGY=exception:CLASS"),
        (["policy", "x", "--error", "never=text:a"], "errors.strategy: must be one of retryable, rate_limited,"),
        (["policy", "", "--base", "1"], "type: must have 1 to 255 characters, not 0"),
        (["pause", "a\nb"], "type: must consist of printable characters"),
        (["pause"], "missing argument 'TYPE'"),
    ],
)
async def test_a_wrong_word_about_a_type(cli: Cli, engine: Engine, arguments: list[str], complaint: str) -> None:
    answer = cli("types", *arguments)
    assert answer.complaint.startswith(complaint)
    assert answer.code == 2
    assert await engine.types() == []


def test_a_wrong_policy_does_not_make_a_store(cli: Cli) -> None:
    assert cli("types", "policy", "x", "--jitter", "2").code == 2
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["resume", "open-breaker", "reset-breaker", "policy", "policy --clear", "delete --yes"]
)
async def test_a_type_that_nobody_has_seen_is_not_found(cli: Cli, engine: Engine, command: str) -> None:
    name, *options = command.split()
    answer = cli("types", name, "nobody", *options)
    assert (answer.code, answer.complaint) == (1, "type 'nobody' not found")
    assert await engine.types() == []


async def test_a_type_is_deleted_when_it_is_confirmed(cli: Cli, engine: Engine) -> None:
    await a_cancelled_job(engine)
    refused = cli("types", "delete", TYPE)
    assert (refused.code, refused.complaint) == (2, "yes: --yes is required: there is no terminal to confirm on")
    assert cli("types", "delete", TYPE, "--yes").out == f"{TYPE}: deleted, with 1 finished job\n"
    await a_pending_job(engine)
    refused = cli("types", "delete", TYPE, "--yes")
    assert (refused.code, refused.complaint) == (2, f"type: '{TYPE}' has 1 unfinished job; cancel them first")


async def test_a_breaker_that_is_not_open_needs_no_reset(cli: Cli, engine: Engine) -> None:
    await a_pending_job(engine)
    assert cli("types", "reset-breaker", TYPE).out == f"{TYPE}: breaker was not open; nothing to do\n"
    assert cli("types", "reset-breaker", TYPE, "--json").json == {"type": TYPE, "was_open": False}


async def test_every_field_of_a_policy_is_set_and_taken_back(cli: Cli, engine: Engine) -> None:
    words = (
        "--breaker-failures 4 --breaker-seconds 30 --max-running 20 --max-running-per-key 5 --rate 100/60 --strict "
        "--failed-job-retry-hours 24 --failed-job-retry-rounds 2 --keep-completed-hours 1 --keep-failed-hours 48 "
        "--error temporary=text:maintenance --error permanent=exception:ValueError"
    )
    said = cli("types", "policy", TYPE, *words.split(), "--json").json["set"]
    assert said == {
        "breaker_failures": 4, "breaker_seconds": 30, "max_running": 20, "max_running_per_key": 5, "rate_jobs": 100,
        "rate_seconds": 60, "strict": True, "failed_job_retry_hours": 24, "failed_job_retry_rounds": 2,
        "keep_completed_hours": 1, "keep_failed_hours": 48,
        "errors": [
            {"strategy": "temporary", "text": "maintenance"},
            {"strategy": "permanent", "exception": "ValueError"},
        ],
    }  # fmt: skip
    names = dict.fromkeys(re.findall(r"--([a-z-]+)", words.replace("--strict", "")))
    back = [word for name in names for word in (f"--{name}", "off")]
    assert cli("types", "policy", TYPE, *back, "--no-strict", "--json").json["set"] == {"strict": False}


async def test_an_open_breaker_is_listed_and_reset_on_every_engine(cli: Cli, url: str, store: Engine) -> None:
    await a_pending_job(store)
    opened = cli("types", "open-breaker", TYPE, "--seconds", "600", "--engine", url)
    assert opened.out == f"{TYPE}: breaker open for 600 s\n"
    assert "breaker open until" in cli("types", "list", "--engine", url).out
    assert (await asked(store)).jobs == []
    assert cli("types", "reset-breaker", TYPE, "--engine", url).out == f"{TYPE}: breaker closed\n"
    assert len((await asked(store)).jobs) == 1


async def test_without_types_the_list_says_so(cli: Cli, engine: Engine) -> None:
    assert cli("types", "list").out == "no types yet; create a job: everwork jobs create email-send\n"


# Groups -------------------------------------------------------------------------------------------------


async def test_a_group_is_listed_and_dropped_on_every_engine(cli: Cli, url: str, store: Engine) -> None:
    await store.add_group(TYPE, "reporting")
    await a_pending_job(store)
    [shown] = cli("groups", "list", "--json", "--engine", url).json["groups"]
    assert (shown["type"], shown["group"], shown["jobs"]["pending"]) == (TYPE, "reporting", 1)
    assert "reporting" in cli("groups", "list", TYPE, "--engine", url).out
    assert cli("groups", "list", "other", "--engine", url).out == "other: no additional groups\n"
    dropped = cli("groups", "drop", TYPE, "reporting", "--engine", url)
    assert dropped.out == f"deleted group reporting of {TYPE}; 1 pending jobs cancelled\n"
    assert [info.groups for info in await store.types()] == [()]


async def test_a_group_that_is_not_there_is_not_found(cli: Cli, engine: Engine) -> None:
    await a_pending_job(engine)
    answer = cli("groups", "drop", TYPE, "reporting")
    assert (answer.code, answer.complaint) == (1, f"type '{TYPE}': group 'reporting' not found")
    assert cli("groups", "drop", TYPE, "").complaint == "group: must have 1 to 255 characters, not 0"
    assert cli("groups", "list").out == "no additional groups\n"


# Jobs ---------------------------------------------------------------------------------------------------


async def test_jobs_are_rescheduled_by_a_stretch_of_time_or_to_a_time(cli: Cli, engine: Engine) -> None:
    job, other = await a_pending_job(engine), await a_pending_job(engine)
    assert cli("jobs", "reschedule", str(job.key), "--at", "12h").out == f"job {job.key}: rescheduled (was pending)\n"
    assert (await the_job(engine, job.key)).run_at_ms >= job.run_at_ms + 12 * HOUR_MS
    assert cli("jobs", "reschedule", str(other.key), "--at", "2090-01-31T12:00:00Z").code == 0
    assert (await the_job(engine, other.key)).run_at_ms == 3_789_547_200_000


async def test_the_priority_of_jobs_is_changed(cli: Cli, engine: Engine) -> None:
    job = await a_pending_job(engine)
    assert cli("jobs", "priority", str(job.key), "--to", "-512").code == 0
    assert (await the_job(engine, job.key)).priority == -512


async def test_finished_jobs_are_deleted_and_that_is_written_down(cli: Cli, engine: Engine) -> None:
    done, waiting = await a_completed_job(engine), await a_pending_job(engine)
    answer = cli("jobs", "delete", str(done.key), str(waiting.key), "--json")
    assert (answer.code, answer.err) == (1, f"everwork: Job '{waiting.key}' is pending: it cannot be deleted\n")
    assert (await engine.get([done.key, waiting.key]))[0] is None
    [entry] = cli("audit", "--json").json["entries"]
    assert (entry["action"], entry["target"]) == ("jobs.delete", str(done.key))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["reschedule", "1"], "missing option '--at'"),
        (["reschedule", "1", "--at", "tomorrow"], "at: must be a duration such as 90d, 12h or 30m, or a time"),
        (["reschedule", "1", "--at", "9999999d"], "delay_ms: must be a whole number from 0 to"),
        (["priority", "1", "--to", "512"], "priority: must be a whole number from -512 to 511, not 512"),
        (["priority", "1", "--to", "high"], "priority: must be a whole number from -512 to 511, not 'high'"),
        (["delete", ""], "key: must not be empty"),
        (["delete"], "missing argument 'KEY...'"),
    ],
)
async def test_a_wrong_word_about_a_job(cli: Cli, engine: Engine, arguments: list[str], complaint: str) -> None:
    answer = cli("jobs", *arguments)
    assert answer.complaint.startswith(complaint)
    assert answer.code == 2


async def test_a_list_takes_every_synonym_of_a_state_in_either_case(cli: Cli, engine: Engine) -> None:
    later = await a_pending_job(engine, type="later", delay_ms=HOUR_MS)
    due = await a_pending_job(engine, type="due")
    running = await a_processing_job(engine, type="running")
    dead = await a_dead_letter(engine, type="dead")
    for state, keys in {
        "ACTIVATABLE": [due.key],
        "activatable": [due.key],
        "QUEUED": [due.key, later.key],
        "Running": [running.key],
        "ACTIVATED": [running.key],
        "error": [dead.key],
    }.items():
        listed = cli("jobs", "list", "--state", state, "--json").json["jobs"]
        assert [job["key"] for job in listed] == [str(key) for key in keys], state
    refused = cli("jobs", "list", "--state", "activatable", "--state", "failed")
    assert refused.complaint == "state: must be activatable alone: it cannot be combined with other states"
