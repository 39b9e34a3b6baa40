"""everwork dead and everwork bench."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from everwork.cli.commands.bench import TYPE as BENCH_TYPE
from everwork.cli.main import run
from everwork.core.fingerprint import fingerprint
from everwork.core.instants import utc_text
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.engines.sqlite.engine import SqliteEngine
from tests.app.waiting import until
from tests.factories import TYPE, a_completed_job, a_dead_letter, a_pending_job, a_processing_job, the_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from everwork.core.leasing import Judged
    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli


async def test_dead_letters_are_listed_in_groups_and_shown_with_their_attempts(cli: Cli, engine: Engine) -> None:
    assert cli("dead", "list").out == "no dead letters\n"
    old = await a_dead_letter(engine, error="card 17 declined")
    new = await a_dead_letter(engine, error="card 18 declined")
    await a_dead_letter(engine, error="refused", type="other")
    kind = fingerprint("card 1 declined")
    [group] = cli("dead", "list", "--type", TYPE, "--since", "1h", "--json").json["groups"]
    assert (group["jobs"], group["fingerprint"], group["key"]) == (2, kind, str(new.key))
    shown = cli("dead", "list").out
    assert kind in shown
    assert "card 18 declined" in shown
    report = cli("dead", "show", kind, "--json").json
    assert (report["key"], report["fingerprint"], report["others"]) == (str(new.key), kind, [str(old.key)])
    assert [entry["error"] for entry in report["history"]] == ["card 18 declined"]
    page = cli("dead", "show", str(old.key)).out
    assert "card 17 declined" in page
    assert page.endswith(f"fingerprint {kind}\n")


async def test_dead_letters_come_back_by_filter_after_a_dry_run(cli: Cli, engine: Engine) -> None:
    timed, other = await a_dead_letter(engine, error="timed out"), await a_dead_letter(engine, error="refused")
    assert cli("dead", "requeue", "--error", "timed", "--dry-run").out == "1 dead letter would be requeued\n"
    assert await the_state(engine, timed.key) is State.FAILED
    assert cli("dead", "requeue", "--error", "timed").out == "1 dead letter requeued\n"
    assert cli("dead", "requeue", "--all", "--json").json == {"matched": 1, "changed": 1, "dry_run": False}
    assert [await the_state(engine, key) for key in (timed.key, other.key)] == [State.PENDING] * 2


async def test_only_dead_letters_are_requeued_and_purged_by_key(cli: Cli, engine: Engine) -> None:
    letter = await a_dead_letter(engine)
    others = await a_completed_job(engine), await a_processing_job(engine), await a_pending_job(engine)
    keys = [str(job.key) for job in others]
    only = "only dead letters can be deleted this way"
    for words, wrong in ((("requeue",), "it cannot be requeued"), (("purge", "--yes"), only)):
        answer = cli("dead", *words, *keys)
        told = [f"everwork: Job '{job.key}' is {job.state.label}: {wrong}" for job in others]
        assert (answer.code, answer.err.splitlines()) == (1, told)
    assert cli("dead", "show", str(others[0].key)).complaint.endswith("is completed, not a dead letter")
    assert cli("dead", "purge", str(letter.key), "--yes").out == f"job {letter.key}: deleted (was failed)\n"
    assert await engine.get([letter.key]) == [None]


async def test_a_purge_asks_first(cli: Cli, engine: Engine) -> None:
    letter = await a_dead_letter(engine)
    answer = cli("dead", "purge", "--type", TYPE)
    assert (answer.code, answer.complaint[:4]) == (2, "yes:")
    assert await the_state(engine, letter.key) is State.FAILED
    assert cli("dead", "purge", "--type", TYPE, "--before", "2020-01-01", "--yes").code == 1
    assert cli("dead", "purge", "--type", TYPE, "--yes").out == "1 dead letter deleted\n"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("requeue --all", 1, "no dead letter matches"),
        ("purge --type nobody --yes", 1, "no dead letter matches"),
        ("show aaaaaaaaaa", 1, "no dead letter has the fingerprint 'aaaaaaaaaa'"),
        ("requeue", 2, "key: is required, unless you pass a filter, or --all for every dead letter"),
        ("requeue --all --type x", 2, "all: cannot be combined with a filter"),
        ("requeue 17 --all", 2, "key: cannot be combined with a filter, --all or --dry-run"),
        ("requeue --fingerprint 17", 2, "fingerprint: must be 10 letters from a to p"),
        ("list --since soon", 2, "since: must be a duration such as 12h (ago), a day, or a time"),
        ("purge --yes --error=", 2, "error: must have 1 to 8,192 characters, at least one of them not a space, not ''"),
        (
            "list --since 2026-13-01",
            2,
            (
                "since: must be a duration such as 12h (ago), a day, or a time with a zone (RFC 3339) "
                "such as 2030-01-31T12:00:00Z, not '2026-13-01'\n"
            ),
        ),
        ("list --limit 1_0", 2, "limit: must be a whole number from 1 to 1000, not '1_0'"),
        ("list --limit ٣", 2, "limit: must be a whole number from 1 to 1000, not '٣'"),
        ("list --limit 0", 2, "limit: must be a whole number from 1 to 1000, not 0"),
    ],
)
def test_a_wrong_word_about_dead_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, code: int, complaint: str
) -> None:
    engine = ["--engine", f"sqlite:///{tmp_path / 'jobs.db'}"]
    assert run(["jobs", "create", "x", *engine]) == 0
    capsys.readouterr()
    assert run(["dead", *words.split(), *engine]) == code
    assert capsys.readouterr().err.startswith(f"everwork: {complaint}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_requeue_says_how_far_it_came_and_stands_in_the_audit_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    asyncio.run(_two_dead_letters(url))
    requeue = SqliteEngine.requeue

    async def requeue_interrupted(engine: SqliteEngine, keys: Sequence[int]) -> list[Judged]:
        os.kill(os.getpid(), number)
        for _ in range(10):
            await asyncio.sleep(0)
        return await requeue(engine, keys)

    monkeypatch.setattr("everwork.service.bulk.LIST_LIMIT_MAX", 1)
    monkeypatch.setattr(SqliteEngine, "requeue", requeue_interrupted)
    assert _code(["dead", "requeue", "--all", "--engine", url]) == code
    said = "interrupted: 1 dead letter requeued; run the command again for the rest"
    assert capsys.readouterr() == ("", f"everwork: {said}\n")
    assert run(["audit", "--engine", url, "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)["entries"]
    assert entry["detail"] == {"filter": {}, "matched": 1, "changed": 1, "broken_off": True}


async def _two_dead_letters(url: str) -> None:
    engine = open_engine(url)
    await engine.open()
    for _ in range(2):
        await a_dead_letter(engine)
    await engine.close()


def _code(words: list[str]) -> object:
    try:
        return run(words)
    except SystemExit as end:
        return end.code


async def test_an_engine_is_measured_and_nothing_is_left_behind(cli: Cli, engine: Engine) -> None:
    report = cli("bench", "--jobs", "150", "--json").json
    assert report["jobs"] == 150
    assert min(report["create_per_second"], report["drain_per_second"], report["latency_ms_median"]) > 0
    assert sum(count.jobs for count in await engine.count()) == 0
    assert cli("bench", "--jobs", "0").complaint.startswith("jobs: must be a whole number from 1 to 1000000")


async def test_a_bench_that_is_terminated_leaves_nothing_and_one_that_was_killed_is_cleaned_up_by_the_next(
    cli: Cli, engine: Engine
) -> None:
    async def are_there() -> bool:
        return sum(count.jobs for count in await engine.count()) > 0

    killed = cli.start("bench", "--jobs", "1000000", "--seconds", "600")
    await until(are_there)
    killed.kill()
    killed.communicate()
    [note] = await engine.registered("bench")
    assert f"try again later (until {utc_text(note.until_ms or 0)} at the latest)" in cli("bench").complaint
    await engine.take_turn(BENCH_TYPE, f"bench-{killed.pid}", 1)
    await until(lambda: engine.take_turn(BENCH_TYPE, "another", 1))
    ended = cli.start("bench", "--jobs", "1000000", "--seconds", "600")
    await until(lambda: _is_noted(engine, f"bench-{ended.pid}"))
    ended.terminate()
    assert (ended.communicate()[0], ended.returncode) == ("", 143)
    assert (await are_there(), await engine.registered("bench")) == (False, [])


async def _is_noted(engine: Engine, holder: str) -> bool:
    return [note.body for note in await engine.registered("bench")] == [holder]
