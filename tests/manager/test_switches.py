"""Workers and triggers are switched off and on while they run."""

from __future__ import annotations

import pytest

from everwork import State
from everwork.app.settings import id_of, source_of
from everwork.exceptions import InvalidInput
from everwork.service.fleet.fleet import Fleet
from everwork.service.jobs import in_process
from tests.app.waiting import until
from tests.manager.conftest import Start
from tests.manager.running import LATE_S, Outside, Said


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_worker_that_is_switched_off_takes_nothing_until_it_is_on_again(
    start: Start, outside: Outside, said: Said
) -> None:
    await start("Echo,Holder")
    fleet = Fleet(outside.service._engine)
    assert await fleet.switch_worker("holder", is_on=False)
    left: list[int] = []

    async def is_off() -> bool:
        left[:] = [key] if not await _is_begun(outside, said, key := await outside.push("hold")) else []
        return bool(left)

    await until(is_off, LATE_S)
    for _ in range(3):
        left.append(await outside.push("hold"))
        assert not await _is_begun(outside, said, left[-1])
    assert "its worker 'holder' is disabled" in (await in_process(outside.service).explain(left[0])).text
    assert await fleet.switch_worker("holder", is_on=True)
    for key in left:
        await said.times(1, "begin", key)


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_workers_that_the_store_has_lost_are_declared_anew(start: Start, outside: Outside) -> None:
    await start("Echo")
    fleet, engine = Fleet(outside.service._engine), outside.service._engine
    for kind in ("process", "owner", "worker"):
        for entry in await engine.registered(kind):
            await engine.unregister(kind, entry.name)

    await until(fleet.workers, LATE_S)

    assert {entry.body for entry in await engine.registered("owner")} == {id_of("echo")}
    with pytest.raises(InvalidInput, match="stop it first"):
        await fleet.forget_worker("echo")


async def _is_begun(outside: Outside, said: Said, key: int) -> bool:
    """Whether a job is begun by the time that a later one has been done which the same process fetches with it."""
    await outside.all_are(State.COMPLETED, [await outside.push("echo")])
    return bool(said.lines("begin", key)) or (await outside.job(key)).state is not State.PENDING


@pytest.mark.parametrize("engine_name", ["sqlite"])
async def test_a_trigger_that_is_switched_off_does_not_fire_nor_make_up_for_it(start: Start, outside: Outside) -> None:
    await start("Ticker")
    fleet, engine = Fleet(outside.service._engine), outside.service._engine
    await until(lambda: _points(outside), LATE_S)
    assert await fleet.switch_trigger("tick", is_on=False)
    name = (await fleet.trigger("tick")).name
    off_ms = (await engine.trigger_marks([name])).now_ms

    async def has_passed_some() -> bool:
        return (await engine.trigger_marks([name])).marks[0].last_ms > off_ms + 1_000

    await until(has_passed_some, LATE_S)
    on_ms = (await engine.trigger_marks([name])).now_ms
    assert await fleet.switch_trigger("tick", is_on=True)

    async def has_fired_again() -> bool:
        return max(await _points(outside)) > on_ms

    await until(has_fired_again, LATE_S)
    assert not [point for point in await _points(outside) if off_ms < point <= on_ms]


async def _points(outside: Outside) -> list[int]:
    """The time points that have created jobs."""
    jobs = await outside.jobs(source_of(id_of("ticker")))
    return sorted(int(str(job.dedupe_key).rpartition(":")[2]) for job in jobs)
