"""A worker's own source, `worker:{id}:source`: jobs published there reach it, and return if it cannot finish them."""

from __future__ import annotations

import hashlib

from everwork import State
from tests.cli.conftest import Cli
from tests.manager.conftest import Start
from tests.manager.running import Outside, Said
from tests.manager.workers import Holder
from tests.server.http.serving import JOBS, serving
from tests.server.http.ui.visiting import visiting


def own_source(title: str) -> str:
    """As the seed defines it."""
    return f"worker:{hashlib.sha256(title.encode()).hexdigest()[:16]}:source"


def test_the_address_is_made_from_the_title() -> None:
    settings = Holder._get_settings()
    assert settings.default_source == own_source("holder")
    assert own_source("holder") in settings.sources


async def test_an_unfinished_job_of_a_workers_own_source_is_handed_back_and_its_history_says_so(
    start: Start, outside: Outside, said: Said, url: str, cli: Cli
) -> None:
    manager = await start("Holder")
    gate = cli.folder / "gate"
    key = await outside.push(own_source("holder"), gate=str(gate))
    await said.times(1, "begin", key, 1)
    await manager.stop_twice()
    assert await manager.exit_code() == 0
    job = await outside.job(key)
    assert (job.state, job.attempts, job.type) == (State.PENDING, 0, own_source("holder"))
    gate.touch()
    await start("Holder")
    await outside.all_are(State.COMPLETED, [key])

    shown = cli("jobs", "get", str(key), "--engine", url).out
    assert "released" in shown
    async with serving(url) as rest:
        history = (await rest.ok("GET", f"{JOBS}/{key}"))["history"]
        assert [(entry["attempt"], entry["kind"], entry["label"]) for entry in history] == [
            (1, "release", "released"),
            (2, "complete", "completed"),
        ]
        async with visiting(rest) as visitor:
            assert "Attempt 1 was released; it does not count" in await visitor.page(f"/ui/jobs/{key}")


async def test_no_other_worker_takes_it(start: Start, outside: Outside, said: Said) -> None:
    await start("Holder", "Echo")
    key = await outside.push(own_source("echo"), text="for you")
    await outside.all_are(State.COMPLETED, [key])
    assert [line[3] for line in said.lines("echo", key)] == ["for"]
    assert not said.lines("begin")
