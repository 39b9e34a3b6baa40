"""The Lua files: one per call of the contract, each with a header, and known to the server whenever they are needed."""

from __future__ import annotations

import inspect

import pytest

from everwork.core import limits, measures
from everwork.core.outcome import Complete
from everwork.engines.contract import Engine
from everwork.engines.redis.engine import RedisEngine
from everwork.engines.redis.scripts import FOLDER, script
from tests.factories import TYPE, a_new_job, a_pending_job, asked, settled
from tests.redis.conftest import opened
from tests.servers import RedisServer

NAMES = sorted(path.stem for path in FOLDER.glob("*.lua"))
PARTS = sorted(path.stem for path in (FOLDER / "parts").glob("*.lua"))
HALVES = {"decide", "lapse"}
"""What settle reads before it writes, and what a sweep writes after it has read."""
WITHOUT_SCRIPT = {
    "close",
    "fresh",
    "health",
    "mark",
    "mark_finished",
    "wait_finished",
    "watch",
    "for_callers",
    "create_alone",
    "create_in",
    "complete_in",
    "schema",
}
IN_REGISTRY = {
    "delete_type",
    "forget_types",
    "pause",
    "set_policy",
    "add_group",
    "drop_group",
    "types",
    "register",
    "unregister",
    "registered",
    "last_registered",
    "open_breaker",
    "reset_breaker",
    "take_turn",
    "subscribe",
    "trigger_marks",
}


def test_every_call_of_the_contract_has_its_script() -> None:
    calls = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction) if not name.startswith("_")}
    assert set(NAMES) - HALVES == calls - WITHOUT_SCRIPT - IN_REGISTRY | {"registry"}


@pytest.mark.parametrize("name", sorted(IN_REGISTRY))
def test_the_registry_does_every_one_of_its_calls(name: str) -> None:
    assert f"function act.{name}(" in (FOLDER / "registry.lua").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_what_it_is_for_what_it_takes_and_what_it_gives(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text()
    assert text.startswith("-- Purpose: ")
    assert "-- Inputs: " in text
    assert "Returns: " in text


@pytest.mark.parametrize("name", PARTS)
def test_a_part_says_what_it_is_for_and_is_used(name: str) -> None:
    assert (FOLDER / "parts" / f"{name}.lua").read_text().startswith("-- Purpose: ")
    headers = [path.read_text() for path in FOLDER.glob("*.lua")]
    assert any(f" {name}" in line for text in headers for line in text.splitlines() if line.startswith("-- Parts:"))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_known_by_the_hash_of_its_text(name: str) -> None:
    assert len(script(name).sha) == 40
    assert "-- Purpose" not in script(name).text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("find", f"local FEW = {limits.LIST_SCAN_MAX}\n"),
        ("sweep", f"local STEP = {limits.SWEEP_STEP_MAX}\n"),
        ("sweep", f"local HISTORY_MAX = {limits.HISTORY_ENTRIES_MAX}\n"),
        ("activate", f"local PROMOTE_MAX = {limits.PROMOTE_MAX}\n"),
        ("create", f"max = t.max or '{limits.ATTEMPTS_DEFAULT}'"),
        ("create", f"({limits.PRIORITY_MAX} - priority) * PRIORITY_STEP"),
        ("oldest", f"local LOOK_MAX, ENOUGH = {limits.OLDEST_SCAN_MAX}, "),
        ("settle", f"local BOUNDS = {{{', '.join(map(str, measures.BOUNDS_MS))}, math.huge}}"),
        ("settle", f"{{'{measures.wait(0)}', '{measures.wait(1)}', "),
    ],
)
def test_a_script_gets_its_limits_from_the_one_place_of_limits(name: str, line: str) -> None:
    assert line in script(name).text
    sources = [path.read_text() for path in FOLDER.rglob("*.lua")]
    assert not any(line in source for source in sources)


@pytest.mark.parametrize("name", NAMES)
def test_no_limit_is_left_open_in_a_script(name: str) -> None:
    assert "@" not in script(name).text


async def test_the_server_knows_the_scripts_of_a_job_before_the_first_job(server: RedisServer) -> None:
    for _ in range(2):
        async with opened(server.url) as engine:
            server.ask("CONFIG", "RESETSTAT")
            await engine.create([a_new_job()])
            [leased] = (await asked(engine)).jobs
            await engine.settle([Complete(leased.key, 1)])
            stats = server.ask("INFO", "commandstats")
            assert "cmdstat_evalsha:calls=3," in stats
            assert "cmdstat_eval:" not in stats
        server.ask("SCRIPT", "FLUSH")


async def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        first = await a_pending_job(engine)
        server.ask("SCRIPT", "FLUSH")
        [leased] = (await asked(engine)).jobs
        server.ask("SCRIPT", "FLUSH")
        assert (await settled(engine, Complete(leased.key, 1))).key == first.key


async def test_scripts_forgotten_in_the_middle_of_work_lose_and_double_nothing(server: RedisServer) -> None:
    async with opened(server.url) as engine:
        await engine.create([a_new_job() for _ in range(200)])
        ran = await drained(engine, server)
        assert sorted(ran) == list(range(1, 201))


async def drained(engine: RedisEngine, server: RedisServer) -> list[int]:
    """The keys that one worker ran, while the server forgot its scripts after every step."""
    ran: list[int] = []
    while jobs := (await asked(engine, 20, type=TYPE)).jobs:
        server.ask("SCRIPT", "FLUSH")
        judged = (await engine.settle([Complete(job.key, job.attempt) for job in jobs])).judged
        assert all(one.ok for one in judged)
        ran += [job.key for job in jobs]
    return ran
