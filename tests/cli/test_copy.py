"""everwork copy: a stopped store moves to another of any engine, and the counts match."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from everwork.cli.commands.copy import _copy
from everwork.core.states import State
from everwork.engines.open import open_engine
from everwork.exceptions import (
    BadConfiguration,
    EngineBusy,
    EngineError,
    EngineUnavailable,
    SchemaMismatch,
    Unauthenticated,
)
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import ANYBODY
from everwork.service.access.sessions import Sessions
from everwork.service.store_copy import COPY_KIND, StoreCopy
from tests.app.waiting import until
from tests.cli.conftest import COMMAND, DEADLINE_SECONDS
from tests.conformance.lives import OWN_POLICY, every_stage, whole
from tests.factories import TYPE, a_completed_job, a_new_job, a_pending_job, a_processing_job, asked, the_job
from tests.stores import ENGINES, VirtualClock, open_store, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from everwork.core.job import StoredJob
    from everwork.engines.contract import Engine
    from everwork.engines.values import JobRecord
    from tests.cli.conftest import Cli


@asynccontextmanager
async def store(url: str) -> AsyncIterator[Engine]:
    """A store that is open for a while."""
    engine = open_engine(url)
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
def source(engine_name: str, tmp_path: Path) -> str:
    """The store to copy from."""
    return url_of(engine_name, _folder(tmp_path / "source"))


@pytest.fixture(params=ENGINES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each engine that nobody has opened yet."""
    return url_of(str(request.param), _folder(tmp_path / "target"))


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A target for tests that are not about engines."""
    return f"sqlite:///{tmp_path}/copy.db"


def _folder(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


# Between any two engines ------------------------------------------------------------------------------------


async def test_everything_is_copied(cli: Cli, engine_name: str, source: str, target: str, tmp_path: Path) -> None:
    # Long ago, so that nobody seems to work on the source now.
    filled = await open_store(engine_name, tmp_path / "source", clock := VirtualClock())
    await every_stage(filled, clock)
    await filled.pause("due", True)
    await filled.set_policy("due", OWN_POLICY)
    await filled.register("key", "k1", '{"tenants":["acme"]}')
    assert await filled.subscribe("due", "mail") == ""
    marks = (await filled.trigger_marks(["nightly"])).marks
    seen = await whole(filled)
    await filled.close()
    answer = cli("copy", source, target)
    assert (answer.code, answer.err) == (0, ""), answer
    assert "the counts match" in answer.out
    async with store(target) as copied:
        assert await whole(copied) == seen
        [info] = [info for info in await copied.types() if info.type == "due"]
        assert (info.paused, info.policy) == (True, OWN_POLICY)
        [key] = await copied.registered("key")
        assert (key.name, key.body, key.until_ms) == ("k1", '{"tenants":["acme"]}', None)
        assert await copied.subscribe("due", "audit") == "audit"
        assert (await copied.trigger_marks(["nightly"])).marks == marks


async def test_a_copy_that_was_cut_short_goes_on_when_it_is_repeated(cli: Cli, source: str, target: str) -> None:
    async with store(source) as filled, store(target) as begun:
        await filled.create([a_new_job() for _ in range(250)])
        await begun.load(await filled.dump(0, 100))
    answer = cli("copy", source, target, "--json").json
    assert (answer["jobs"], answer["present"], answer["counts_agree"]) == (150, 100, True)


async def test_repeating_a_finished_copy_changes_nothing(cli: Cli, source: str, target: str) -> None:
    async with store(source) as filled:
        await a_completed_job(filled, type="done")
    cli("copy", source, target, "--while-running")
    answer = cli("copy", source, target, "--while-running", "--json").json
    assert (answer["jobs"], answer["present"], answer["counts_agree"]) == (0, 1, True)


async def test_keys_go_on_above_those_that_were_copied(cli: Cli, source: str, target: str) -> None:
    async with store(source) as filled:
        created = await filled.create([a_new_job() for _ in range(20)])
    cli("copy", source, target)
    async with store(target) as copied:
        assert (await a_pending_job(copied)).key > created[-1].key


# What is refused ----------------------------------------------------------------------------------------------


async def test_a_target_with_other_jobs_is_refused_and_left_as_it_is(cli: Cli, source: str, target: str) -> None:
    async with store(source) as filled, store(target) as other:
        await a_pending_job(filled)
        there = await a_pending_job(other, type="other")
    answer = cli("copy", source, target)
    assert answer.code == 2
    assert f"target: is not empty, and its newest job, {there.key}, does not come from this source" in answer.complaint
    async with store(target) as other:
        assert [job.type for job in (await the_jobs(other))] == ["other"]


async def the_jobs(engine: Engine) -> list[StoredJob]:
    """All jobs of a small store."""
    return [record.job for record in await engine.dump(0, 1_000)]


async def test_into_a_target_with_other_jobs_it_copies_when_told(cli: Cli, engine: Engine, file: str) -> None:
    await engine.create([a_new_job() for _ in range(5)])
    await engine.cancel([1, 2])
    await engine.delete([1, 2])
    async with store(file) as other:
        await other.create([a_new_job(type="other"), a_new_job(type="other")])
    answer = cli("copy", "sqlite:///everwork.db", file, "--into-non-empty", "--json").json
    assert (answer["jobs"], answer["counts_agree"]) == (3, True)
    async with store(file) as other:
        assert sum(count.jobs for count in await other.count()) == 5


async def test_two_jobs_with_one_key_are_told_and_not_lost_in_silence(cli: Cli, engine: Engine, file: str) -> None:
    await a_pending_job(engine)
    async with store(file) as other:
        await a_pending_job(other, type="other")
    answer = cli("copy", "sqlite:///everwork.db", file, "--into-non-empty")
    assert answer.code == 2
    assert "target: already has another job with key 1 (type 'other')" in answer.complaint


async def test_the_same_store_by_another_name_is_refused(cli: Cli, engine: Engine) -> None:
    await a_pending_job(engine)
    (cli.folder / "link.db").symlink_to(cli.file)
    answer = cli("copy", "sqlite:///everwork.db", "sqlite:///link.db")
    assert (answer.code, answer.complaint) == (2, "target: is the same store as the source; choose another one")


async def test_a_source_that_workers_use_is_refused_unless_it_is_meant(cli: Cli, engine: Engine, file: str) -> None:
    await a_processing_job(engine)
    answer = cli("copy", "sqlite:///everwork.db", file)
    assert answer.code == 2
    assert answer.complaint.startswith(f"source: is in use: a worker polled for '{TYPE}' ")
    assert cli("copy", "sqlite:///everwork.db", file, "--while-running").code == 0


@pytest.mark.parametrize(("kind", "who"), [("manager", "manager"), ("process", "process"), ("firing", "application")])
async def test_a_source_with_live_processes_is_refused(
    cli: Cli, engine: Engine, file: str, kind: str, who: str
) -> None:
    await engine.register(kind, "p1", "{}", ttl_ms=60_000)
    answer = cli("copy", "sqlite:///everwork.db", file)
    assert (answer.code, answer.complaint) == (2, f"source: is in use by {who} 'p1'; stop it first")


async def test_who_is_logged_in_and_what_was_measured_stay_where_they_are(cli: Cli, engine: Engine, file: str) -> None:
    sessions = Sessions(engine)
    link, session = await sessions.new_link(), await sessions.begin(ANYBODY, KeyRing(engine), "cli")
    for kind in ("restart", "minute", "worker"):
        await engine.register(kind, "one", "{}", ttl_ms=60_000)
    assert cli("copy", "sqlite:///everwork.db", file).code == 0
    async with store(file) as copied:
        assert await Sessions(copied).find(session.token) is None
        with pytest.raises(Unauthenticated):
            await Sessions(copied).follow(link, "cli")
        assert [entry.kind for entry in await copied.registered(None)] == ["worker"]


def test_a_source_that_is_not_there_leaves_no_target_behind(cli: Cli) -> None:
    answer = cli("copy", "sqlite:///nope.db", "sqlite:///copy.db")
    assert answer.code == 2
    assert "does not exist" in answer.complaint
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sqlite:///a.db"], "missing argument 'DST'"),
        (["sqlite:///:memory:", "sqlite:///a.db"], "engine URL: an in-memory store would end with this command"),
        (["mysql://ann:s3cret@h/db", "sqlite:///a.db"], "engine URL: unknown scheme 'mysql'"),
    ],
)
def test_a_mistake_is_told_in_one_line(cli: Cli, arguments: list[str], told: str) -> None:
    answer = cli("copy", *arguments)
    assert (answer.code, told in answer.complaint, "s3cret" in answer.err) == (2, True, False)


# What it does on the way ------------------------------------------------------------------------------------------


async def test_an_interrupted_copy_says_how_to_go_on_and_does(cli: Cli, engine: Engine, file: str) -> None:
    await engine.create([a_new_job(variables='{"a":"%s"}' % ("x" * 5_000)) for _ in range(8_000)])
    copying = cli.start("copy", "sqlite:///everwork.db", file)
    async with store(file) as begun:
        await until(begun.count)
        copying.send_signal(signal.SIGINT)
        _, told = await asyncio.to_thread(copying.communicate)
        present = sum(count.jobs for count in await begun.count())
        assert [entry.kind for entry in await begun.registered(COPY_KIND)] == [COPY_KIND]
    assert (copying.returncode, 0 < present < 8_000) == (130, True)
    assert told.splitlines()[-1] == "everwork: interrupted; run the same command again to continue"
    again = cli("copy", "sqlite:///everwork.db", file, "--json").json
    assert (again["present"], again["jobs"], again["counts_agree"]) == (present, 8_000 - present, True)


async def test_after_a_copy_its_mark_is_gone(cli: Cli, engine: Engine, file: str) -> None:
    await a_pending_job(engine)
    cli("copy", "sqlite:///everwork.db", file)
    async with store(file) as copied:
        assert await copied.registered(None) == []


async def test_a_group_that_was_dropped_does_not_come_back(cli: Cli, engine: Engine, file: str) -> None:
    await engine.add_group(TYPE, "old")
    job = await a_pending_job(engine)
    await engine.drop_group(TYPE, "old")
    cli("copy", "sqlite:///everwork.db", file)
    async with store(file) as copied:
        assert [info.groups for info in await copied.types()] == [()]
        assert await the_job(copied, job.key) == job
        assert {record.job.state for record in await copied.dump(job.key, 10)} == {State.CANCELLED}


async def test_an_entry_that_runs_out_does_so_in_the_target(cli: Cli, engine: Engine, file: str) -> None:
    await engine.register("key", "k", "{}", ttl_ms=600_000)
    [entry] = await engine.registered("key")
    cli("copy", "sqlite:///everwork.db", file)
    async with store(file) as copied:
        [moved] = await copied.registered("key")
    assert abs((moved.until_ms or 0) - (entry.until_ms or 0)) < 60_000


def test_on_a_terminal_a_bar_shows_how_far_it_is(cli: Cli) -> None:
    cli("jobs", "create", "x", "--count", "500")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [COMMAND, "copy", "sqlite:///everwork.db", "sqlite:///copy.db"],
        cwd=cli.folder, env=cli.environment(TERM="xterm"), stdout=subprocess.PIPE, stderr=theirs,
        timeout=DEADLINE_SECONDS, check=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # The end of a terminal.
        while more := os.read(ours, 10_000):
            shown += more
    os.close(ours)
    assert b"500/500" in shown
    assert re.search(rb"^  jobs +500\n  types +1\n", done.stdout, re.MULTILINE)


# When the stores do not behave ----------------------------------------------------------------------------------


class Forgetful:
    """A target that does not keep every job it takes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    async def load(self, records: Sequence[JobRecord]) -> int:
        """Take all, keep all but one."""
        await self._engine.load(records[1:])
        return len(records)


async def test_counts_that_differ_are_told(engine: Engine, file: str) -> None:
    await engine.create([a_new_job(tenant="acme") for _ in range(3)])
    async with store(file) as other:
        copied = await StoreCopy(engine, Forgetful(other), "source", lambda _: None).copy()  # type: ignore[arg-type]
    [difference] = copied.differences
    assert difference == (f"pending jobs of '{TYPE}', tenant 'acme'", 3, 2)


async def test_the_command_ends_with_1_when_somebody_adds_jobs_to_the_target(
    cli: Cli, engine: Engine, file: str
) -> None:
    await a_pending_job(engine)
    cli("copy", "sqlite:///everwork.db", file)
    async with store(file) as other:
        await asked(other)
    answer = cli("copy", "sqlite:///everwork.db", file)
    assert answer.code == 1
    assert f"pending jobs of '{TYPE}': 1 in the source, 0 in the target" in answer.err
    assert "the counts differ" in answer.out


@pytest.mark.parametrize("error", [EngineUnavailable, EngineBusy, BadConfiguration, SchemaMismatch])
async def test_only_a_store_that_may_come_back_is_waited_for(
    cli: Cli, error: type[EngineError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store(f"sqlite:///{cli.file}"):
        pass

    async def fail(*_: object, **__: object) -> None:
        raise error("something is wrong")

    monkeypatch.setattr(StoreCopy, "copy", fail)
    with pytest.raises(error) as told:
        await _copy(f"sqlite:///{cli.file}", f"sqlite:///{cli.folder}/target.db", {})
    assert ("when it is back" in str(told.value)) == (error in (EngineUnavailable, EngineBusy))
