"""Stores that are not full of life: empty, young, with failures only, and one whose engine goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed
from everwork.engines.contract import Engine
from tests.server.whole import Whole, running
from tests.servers import redis_server
from tests.stores import HOUR_MS, MINUTE_MS

MAIL: Final = "email-send"
HOOK: Final = "webhook-deliver"
TIMEOUT: Final = "TimeoutError: timed out after 60 s"
REFUSED: Final = "ConnectionError: connection refused by hooks.example.org:443"

PAGES: Final[Mapping[str, str]] = {
    "overview": "/ui",
    "overview-24h": "/ui?range=24h",
    "types": "/ui/types",
    "jobs": "/ui/jobs",
    "dead": "/ui/dead",
    "workers": "/ui/workers",
    "triggers": "/ui/triggers",
    "breakers": "/ui/breakers",
    "keys": "/ui/keys",
    "audit": "/ui/audit",
    "settings": "/ui/settings",
}
OF_A_TYPE: Final[Mapping[str, str]] = {"type": f"/ui/type?name={MAIL}", "job": "/ui/jobs/1"}


class Population(NamedTuple):
    """A server on a store, its pages by name, and what takes the engine away."""

    whole: Whole
    pages: Mapping[str, str]
    leave: Callable[[], None]

    @property
    def url(self) -> str:
        """The address of its pages."""
        return f"http://127.0.0.1:{self.whole.ports.http}"


async def nothing(engine: Engine) -> None:
    """No jobs at all."""


async def one_job(engine: Engine) -> None:
    """One due job, and no worker."""
    await engine.create([NewJob(MAIL, '{"to": "ada@example.org"}')])


async def a_few_jobs(engine: Engine) -> None:
    """A handful of jobs of two types: completed, retried, dead, running and scheduled."""
    await engine.create([NewJob(MAIL, '{"to": "ada@example.org"}')] * 5 + [NewJob(HOOK)] * 2)
    await engine.create([NewJob(MAIL, delay_ms=HOUR_MS)])
    leased = (await engine.activate([Demand(MAIL, "mailer@laptop", 5, MINUTE_MS)])).jobs
    hooks = (await engine.activate([Demand(HOOK, "courier@laptop", 2, MINUTE_MS)])).jobs
    *done, late, _ = leased
    await engine.settle([Complete(job.key, job.attempt) for job in done])
    await engine.settle([Failed(late.key, late.attempt, TIMEOUT, classes=("TimeoutError",), backoff_ms=MINUTE_MS)])
    await engine.settle([Failed(hooks[0].key, hooks[0].attempt, REFUSED, retries=0, classes=("ConnectionError",))])
    await engine.settle([Complete(hooks[1].key, hooks[1].attempt)])


async def failures_only(engine: Engine) -> None:
    """Every attempt fails."""
    await engine.create([NewJob(MAIL)] * 4)
    for job in (await engine.activate([Demand(MAIL, "mailer@laptop", 4, MINUTE_MS)])).jobs:
        await engine.settle([Failed(job.key, job.attempt, REFUSED, retries=0, classes=("ConnectionError",))])


_LIVES: Final[Mapping[str, Callable[[Engine], Awaitable[None]]]] = {
    "empty": nothing,
    "one": one_job,
    "young": a_few_jobs,
    "failing": failures_only,
    "broken": a_few_jobs,
}
POPULATIONS: Final = tuple(_LIVES)


@asynccontextmanager
async def a_population(name: str, folder: Path) -> AsyncIterator[Population]:
    """A server that was started on a new store, and what happened in its first seconds."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server()) if name == "broken" else None
        async with running(redis.url if redis else f"sqlite:///{folder / 'jobs.db'}") as whole:
            await _LIVES[name](whole.service._engine)
            await whole.server.sampler.fresh()
            pages = PAGES if name == "empty" else {**PAGES, **OF_A_TYPE}
            yield Population(whole, pages, redis.kill if redis else _stays)


def _stays() -> None:
    raise AssertionError("only the engine of the broken store goes away")
