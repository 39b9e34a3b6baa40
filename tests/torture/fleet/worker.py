"""A worker of the fleet that polls: `python -m tests.torture.fleet.worker`; its name contains its protocol."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from everwork.core.leasing import Judged
from everwork.core.outcome import Outcome
from tests.torture import plan
from tests.torture.fleet.parts import SERVED, RemoteEngine, engine_of, main
from tests.torture.history import HistoryWriter, host_clock_ms
from tests.torture.process import Life
from tests.torture.worker import Desk, dead_letters, extend_held, repeats, run, unanswered

_WAIT_SECONDS: Final = 1.5
_PAUSE_SECONDS: Final = 0.1
_TICK_SECONDS: Final = 0.03
_AGAIN_MS: Final = 300
_AT_ONCE: Final = 40
_LIMITS: Final = {"rest": 5, "grpc": 15}
"""How many jobs one poll leases at most: REST needs a call to end each."""
_UNREPORTED_MAX: Final = 20
_LOOK_SHARE: Final = 0.05


async def work(life: Life, history: HistoryWriter, stop: asyncio.Event) -> None:
    """Concurrent long polls, one for each type; outcomes are reported together."""
    async with engine_of(life.name.partition("-")[0], life, history) as engine:
        desk, arrived = Desk(), asyncio.Event()
        desk.outcomes += unanswered(life)
        wanted = [*((kind, "") for kind in SERVED), (plan.WORK, plan.AUDIT)]
        polls = [asyncio.create_task(_poll(life, engine, desk, arrived, one)) for one in wanted]
        try:
            while not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(arrived.wait(), _TICK_SECONDS)
                arrived.clear()
                await _report(engine, desk)
                await extend_held(life, engine, desk)
                if failed := [one for one in polls if one.done()]:
                    failed[0].result()
        finally:
            for one in polls:
                one.cancel()
            await asyncio.gather(*polls, return_exceptions=True)
        await _report(engine, desk)


async def _poll(life: Life, engine: RemoteEngine, desk: Desk, arrived: asyncio.Event, queue: tuple[str, str]) -> None:
    """Poll for one type and group, and run the jobs."""
    rng, (kind, group) = life.rng, queue
    while True:
        while len(desk.outcomes) > _UNREPORTED_MAX:  # noqa: ASYNC110 - lease no more than can be reported in time
            await asyncio.sleep(_TICK_SECONDS)
        jobs = await engine.poll(
            kind, rng.randint(1, _LIMITS[life.name.partition("-")[0]]), life.lease_ms, _WAIT_SECONDS, group
        )
        for job in jobs or ():
            run(engine, desk, job, life.lease_ms)
        if jobs is None:
            await asyncio.sleep(_PAUSE_SECONDS)  # As every client does after an error.
        elif jobs:
            arrived.set()
            if rng.random() < _LOOK_SHARE:
                # Jobs with adjacent keys often belong to another tenant.
                await engine.look(jobs[0].key + rng.randint(-3, 3))


async def _report(engine: RemoteEngine, desk: Desk) -> None:
    """Report outcomes; then repeat some, and requeue, as planned."""
    now_ms = host_clock_ms()
    while desk.late and desk.late[0][0] <= now_ms:
        desk.outcomes.append(heapq.heappop(desk.late)[2])
    outcomes, desk.outcomes = desk.outcomes[:_AT_ONCE], desk.outcomes[_AT_ONCE:]
    if not outcomes:
        return
    judged = await engine.report(outcomes)
    reported = [(outcome, one) for outcome, one in zip(outcomes, judged, strict=True) if one is not None]
    for outcome in _lost(outcomes, judged):
        desk.put_off(outcome, now_ms + _AGAIN_MS)
    # REST does not show that an outcome was reported before, so remember it: each is repeated only once.
    again = [one for one in repeats(desk, reported) if (one.key, one.attempt, type(one)) not in desk.repeated]
    desk.repeated.update((one.key, one.attempt, type(one)) for one in again)
    desk.outcomes += again
    for key in dead_letters(desk, reported):
        await engine.requeue([key])


def _lost(outcomes: Sequence[Outcome], judged: Sequence[Judged | None]) -> list[Outcome]:
    """The outcomes without a response."""
    return [outcome for outcome, one in zip(outcomes, judged, strict=True) if one is None]


if __name__ == "__main__":
    main(work)
