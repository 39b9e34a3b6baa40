"""A world in which every page of the dashboard has something to show: a real store, server, manager and keys."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everwork.app.settings import id_of
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Failed
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.service.access.audit import Audit
from everwork.service.access.keys import KeyRing
from everwork.service.access.principal import ANYBODY, Principal
from everwork.service.admin import Admin
from everwork.service.fleet.fleet import Fleet
from everwork.service.monitor.sampler import MetricsSampler
from everwork.service.service import JobService
from everwork.service.verb import Caller
from tests.app.waiting import until
from tests.browser.past import Past
from tests.browser.shop import FILM, STORE
from tests.server.whole import KEY, Whole, running
from tests.servers import die_with_the_parent
from tests.stores import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, VirtualClock

ROOT: Final = Path(__file__).resolve().parents[2]
LATE_S: Final = 30.0
PRESENT_MS: Final = 4 * MINUTE_MS
STUCK: Final = "payment-charge"
PAUSED: Final = "search-index"
NOBODYS: Final = "data-export"
REFUSED: Final = "ConnectionError: connection refused by db.example.org:5432"
LAYOUT: Final = "RuntimeError: the layout 'invoice-2024' has no field 'vat'"
TRACE: Final = f"""Traceback (most recent call last):
  File "shop/invoices.py", line 88, in __call__
    page = layout.fill(order)
  File "shop/layouts.py", line 31, in fill
    raise RuntimeError(f"the layout {{self.name!r}} has no field {{name!r}}")
{LAYOUT}"""


PAGES: Final = {
    "overview": "/ui",
    "types": "/ui/types",
    "type": f"/ui/type?name={STUCK}",
    "jobs": "/ui/jobs",
    "jobs-failed": "/ui/jobs?state=failed",
    "job-failed": "/ui/jobs/{failed}",
    "job-waiting": "/ui/jobs/{stuck}",
    "job-running": "/ui/jobs/{running}",
    "job-completed": "/ui/jobs/{completed}",
    "job-new": "/ui/jobs/new?type=email-send",
    "dead": "/ui/dead",
    "workers": "/ui/workers",
    "triggers": "/ui/triggers",
    "trigger": f"/ui/trigger?name={id_of('accountant')}/{id_of('nightly closing')}",
    "breakers": "/ui/breakers",
    "keys": "/ui/keys",
    "audit": "/ui/audit",
    "settings": "/ui/settings",
}
"""Every page, by a short name; those of a job with what the job shows."""


@dataclass(frozen=True)
class World:
    """A server on a store full of life; `jobs` are keys of jobs that are worth a look, by what they show."""

    whole: Whole
    keys: dict[str, str]
    jobs: dict[str, int]

    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self.whole.ports.http}"

    @property
    def pages(self) -> dict[str, str]:
        """Every page, by a short name."""
        return {name: path.format(**self.jobs) for name, path in PAGES.items()}


@asynccontextmanager
async def a_world(folder: Path, minutes: int = 15) -> AsyncIterator[World]:
    """A world from its beginning, a day ago, to its end; so many of its last minutes are told apart."""
    url = f"sqlite:///{folder / 'shop.db'}"
    clock = VirtualClock(time.time_ns() // 1_000_000)
    engine = open_engine(url, clock=clock)
    await engine.open()
    keys, jobs = await _the_past(engine, clock, minutes)
    await engine.close()
    async with running(url) as whole:
        with _managed(url, folder):
            await until(lambda: _is_at_work(whole, jobs["running"]), LATE_S)
            yield World(whole, {"root": KEY, **keys}, jobs)


async def _the_past(engine: Engine, clock: VirtualClock, minutes: int) -> tuple[dict[str, str], dict[str, int]]:
    now_ms = clock.now_ms
    clock.now_ms = now_ms - DAY_MS - HOUR_MS
    keys = await _set_up(engine, clock)
    clock.now_ms = now_ms - PRESENT_MS
    sampler, past = MetricsSampler(engine, "past"), Past(engine, clock)
    await past.write(minutes, sampler.fresh)
    jobs = await _the_present(engine, clock, past, sampler)
    await sampler.close()
    return keys, jobs


async def _set_up(engine: Engine, clock: VirtualClock) -> dict[str, str]:
    """Policies and keys, as an administrator has made them."""
    boss = Principal("first", "ada (first key)", ANYBODY.permissions)
    service = JobService(engine, "set-up")
    service.audit = Audit(engine, clock)
    admin = Admin(service, KeyRing(engine, clock=clock), Caller(boss, "10.20.0.7"))
    for type, said in _POLICIES.items():
        clock.advance(seconds=37)
        await admin.set_policy(type, said)
    made = {}
    for name, permissions, tenants, days in _KEYS:
        clock.advance(seconds=95)
        expires = None if days is None else clock.now_ms + days * DAY_MS
        made[name] = await admin.create_key(name, permissions, tenants=tenants, expires_at_ms=expires)
    clock.advance(seconds=300)
    await admin.revoke_key(made["old deploy script"].key.id)
    return {name: one.text for name, one in made.items()}


_POLICIES: Final[dict[str, dict[str, Any]]] = {
    STUCK: {"max_attempts": 6, "base": 10.0, "breaker_failures": 3, "breaker_seconds": 3_600.0, "max_running": 20},
    "sms-send": {"rate_jobs": 100, "rate_seconds": 60.0, "keep_completed_hours": 48.0},
    "webhook-deliver": {"max_attempts": 4, "max_running_per_key": 2, "failed_job_retry_hours": 12.0},
}
_KEYS: Final[Sequence[tuple[str, list[str], list[str], int | None]]] = (
    ("operations", ["*"], [], None),
    ("wall screen", ["jobs:read"], [], None),
    ("acme integration", ["jobs"], ["acme"], 90),
    ("old deploy script", ["jobs", "admin"], [], 30),
)


async def _the_present(engine: Engine, clock: VirtualClock, past: Past, sampler: MetricsSampler) -> dict[str, int]:
    """The last minutes: work in every state, in no order, while work goes on."""
    await _open_the_breaker(engine)
    await engine.pause(PAUSED, True)
    new = [NewJob(**{"variables": '{"order": 4711}', **fields}) for jobs, fields in _WAITING for _ in range(jobs)]
    random.Random(7).shuffle(new)
    keys: dict[str, int] = {}
    began_ms, step_ms = clock.now_ms, (PRESENT_MS - MINUTE_MS // 2) // len(new)
    for number, job in enumerate(new):
        clock.now_ms = max(clock.now_ms, began_ms + number * step_ms)
        await sampler.fresh()
        if number % (MINUTE_MS // step_ms) == 0:
            await past.minute(clock.now_ms)
        [created] = await engine.create([job])
        keys[job.type if job.correlation_id is None else "cancelled"] = created.key
        if job.correlation_id is not None:
            await engine.cancel([created.key], "the customer has cancelled the order")
    await engine.open_breaker("sms-send", SECOND_MS)
    failed, completed = await _a_hard_life(engine, clock)
    named = {"stuck": keys[STUCK], "running": keys[FILM], "cancelled": keys["cancelled"]}
    return {**named, "failed": failed, "completed": completed}


_WAITING: Final[Sequence[tuple[int, dict[str, Any]]]] = (
    (12, {"type": STUCK, "variables": '{"order": 4711, "cents": 12900, "password": "geheim"}'}),
    (20, {"type": PAUSED}),
    (7, {"type": NOBODYS, "tenant": "globex", "priority": 5}),
    (15, {"type": "email-send", "delay_ms": 3 * HOUR_MS}),
    (3, {"type": "email-send", "delay_ms": HOUR_MS, "correlation_id": "order-4711"}),
    (2, {"type": FILM, "variables": '{"film": "harbour-tour.mov", "sizes": [1080, 720, 360]}'}),
)
"""How many jobs of what; those with a correlation id are cancelled at once."""


async def _open_the_breaker(engine: Engine) -> None:
    """Three failures in a row."""
    await engine.create([NewJob(STUCK, '{"order": 4710}')] * 3)
    leased = (await engine.activate([Demand(STUCK, "cashier@pay-1", 3, MINUTE_MS)])).jobs
    error = "GatewayError: 502 server error of pay.example.org"
    await engine.settle([Failed(job.key, job.attempt, error, classes=("GatewayError",)) for job in leased])


async def _a_hard_life(engine: Engine, clock: VirtualClock) -> tuple[int, int]:
    """A job that has failed in several ways and rests, and one that was done at the second attempt."""
    said = {"order": 4711, "layout": "invoice-2024", "lines": [{"item": "lamp", "cents": 4900}], "api_token": "s3cret"}
    more: dict[str, Any] = {
        "headers": '{"traceparent": "00-4bf92f35-00f067aa-01"}',
        "correlation_id": "order-4711",
        "max_attempts": 3,
    }
    new = NewJob("invoice-render", json.dumps(said), **more)
    failed, completed = [one.key for one in await engine.create([new] * 2)]
    stack = 'Stack (most recent call last):\n  File "shop/invoices.py", line 88, in __call__\n    await fonts.load()'
    for error, trace in (("timed out after 60 s", stack), (REFUSED, None), (LAYOUT, TRACE)):
        leased = (await engine.activate([Demand("invoice-render", "accountant@web-1", 500, MINUTE_MS)])).jobs
        clock.advance(seconds=4)
        mine = {job.key: job for job in leased}
        if completed in mine and mine[completed].attempts > 1:
            await engine.settle([Complete(completed, mine.pop(completed).attempt, '{"pages": 2, "file": "4711.pdf"}')])
        await engine.settle(
            [Failed(job.key, job.attempt, error, backoff_ms=1_000, traceback=trace) for job in mine.values()]
        )
        clock.advance(seconds=2)
    return failed, completed


@contextmanager
def _managed(url: str, folder: Path) -> Iterator[None]:
    """The shop's manager, a real one, as long as the block lasts."""
    command = [sys.executable, "-m", "everwork", "worker", "tests.browser.shop:make_manager"]
    with (folder / "manager.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, STORE: url}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
            preexec_fn=die_with_the_parent,  # noqa: PLW1509 - one call into libc, which takes no lock
        )  # fmt: skip
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _is_at_work(whole: Whole, key: int) -> bool:
    """Whether all processes live and the film is being worked on."""
    states = [one.state for one in await Fleet(whole.service._engine).processes()]
    return len(states) == 3 and set(states) == {"running"} and (await whole.job(key)).worker is not None
