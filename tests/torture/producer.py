"""A producer process of the torture: asks for jobs, alone and in bulk, and fires a trigger."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import count

from everwork.core.states import State
from tests.torture import mutants, plan
from tests.torture.history import entries_of, host_clock_ms
from tests.torture.logged import LoggedEngine, request_again
from tests.torture.process import Life, main, patiently

_PENDING_MAX = 1_500
_PAUSE_SECONDS = 0.02
_SHARED_KEYS_EVERY_MS = 100
_LONE_JOBS = (0, 1, 1, 2, 5)


async def produce(life: Life, engine: LoggedEngine, stop: asyncio.Event) -> None:
    """Ask for jobs until told to stop, but no more than the workers can take."""
    rng = life.rng
    names = (f"{life.name}.{life.life}.{number}" for number in count())
    again = unanswered(life)
    while not stop.is_set():
        wanted = [*again, *batch(life, rng, names), *trigger_points(life, names)]
        created = await engine.create(wanted)
        # What has a dedupe key is asked for again until there is an answer.
        again = [] if created else [one for one in wanted if one.job.dedupe_key is not None]
        if created and rng.random() < 0.1:
            await engine.cancel([rng.choice(created).key])
        for _ in range(rng.choice(_LONE_JOBS)):
            await _pause(life, engine, stop)  # Workers have the time to wait again.
            await engine.create([plan.lone_request(next(names))])
        await _pause(life, engine, stop)


def batch(life: Life, rng: random.Random, names: Iterator[str]) -> list[plan.Request]:
    """One job, or a bulk; some under a dedupe key that every producer uses at this time, some that expire soon."""
    wanted = []
    now_ms = host_clock_ms()
    for _ in range(rng.choice((1, 1, 5, 20, 60, 150))):
        dedupe_key = None
        if rng.random() < 0.15:
            dedupe_key = f"shared-{(now_ms - life.epoch_ms) // _SHARED_KEYS_EVERY_MS - rng.randint(0, 10)}"
        expires_at_ms = now_ms + rng.randint(50, 500) if rng.random() < 0.01 else None
        wanted.append(plan.request(next(names), rng, dedupe_key, expires_at_ms))
    return wanted


def trigger_points(life: Life, names: Iterator[str]) -> list[plan.Request]:
    """The last time points of the trigger: every producer fires all of them, each is to fire once."""
    return plan.trigger_requests(
        host_clock_ms(), life.epoch_ms, names, from_now=life.mutant == mutants.TRIGGER_FROM_NOW
    )


def unanswered(life: Life) -> list[plan.Request]:
    """What the life before asked for under a dedupe key without learning the answer: asking again is safe."""
    if life.life == 0 or not life.file(life.life - 1).exists():
        return []
    invoked = {}
    for entry in entries_of(life.file(life.life - 1)):
        if entry["e"] == "invoked" and entry["call"] == "create":
            invoked[entry["id"]] = entry["items"]
        elif entry["e"] in ("ok", "refused"):
            invoked.pop(entry["id"], None)
    return [request_again(item) for items in invoked.values() for item in items if item["dedupe"] is not None]


async def _pause(life: Life, engine: LoggedEngine, stop: asyncio.Event) -> None:
    """Leave the workers time: a moment, or until the backlog is small again."""
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), _PAUSE_SECONDS)
        except TimeoutError:
            counts = await patiently(engine.engine.count, outages=life.outages)
            pending = sum(one.jobs for one in counts if one.state is State.PENDING)
            if pending < _PENDING_MAX:
                return


if __name__ == "__main__":
    main(produce)
