"""Pages: the dashboard and the metrics with a million finished and 100,000 waiting jobs, from one client."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

from benchmarks.bench import Bench, Row, opened
from benchmarks.hosts import alive_seconds
from benchmarks.population import DEAD_EVERY, Size, error_of, populate, size_of, tenant_of, type_of, worker_of
from benchmarks.server import KEY, served
from benchmarks.surroundings import surround
from everwork.core.fingerprint import fingerprint
from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete
from everwork.engines.contract import Engine
from everwork.server.http.ui.address import address, job_url, type_url

REQUESTS = 30
PAGE_MS_MAX = 200
FIRST_VIEW_MS_MAX = 300
METRICS_MS_MAX = 100
MANY_TYPES = 1_000
KEPT_SECONDS_MAX = 12 * 3_600
"""A kept store that is older is filled again: Redis deletes finished jobs after a day."""
MOMENT = re.compile(r"[0-9-]+T[0-9]+%3A[0-9]+")
ASSET = re.compile(rb'(?:href|src)="(/ui/static/[^"]+)"')

Ask = Callable[[], None]


async def measure_pages(bench: Bench) -> list[Row]:
    """Request every page in turn, repeatedly, one request at a time over one connection; then with many types."""
    async with _filled(bench) as url:
        await _prepare(url)
        bench.host.loaded(url)
        with served(url) as (process, facts):
            client = Client(facts["http_port"])
            asks = {MOMENT.sub("(time)", path): (client.page(path), PAGE_MS_MAX) for path in _paths(size_of(bench))}
            asks["first view: /ui and its files"] = (client.first_view, FIRST_VIEW_MS_MAX)
            asks["/metrics"] = (client.metrics, METRICS_MS_MAX)
            cpu = Cpu(bench, process.pid)
            rows = await asyncio.to_thread(_measured, bench, asks, cpu)
            await _many_types(bench, url)
            await asyncio.to_thread(client.wait_for_types, MANY_TYPES)
            again = {path: (client.page(path), PAGE_MS_MAX) for path in ("/ui", "/ui/types", "/ui/jobs")}
            again["/metrics"] = (client.metrics, METRICS_MS_MAX)
            return rows + await asyncio.to_thread(_measured, bench, again, cpu, f" ({MANY_TYPES:,} types)")


def _paths(size: Size) -> Iterator[str]:
    """Every page, and the list of jobs with every kind of filter."""
    plain = ("types", "dead", "workers", "triggers", "breakers", "keys", "audit", "settings")
    dead, waiting = size.finished // 2 + DEAD_EVERY // 2, size.finished + size.waiting // 2
    yield from ("/ui", *(f"/ui/{name}" for name in plain))
    yield from ("/ui?range=24h", type_url(type_of(dead)))
    yield from (job_url(n + 1) for n in (dead, dead + 1, waiting + 1, waiting // 200 * 200 + 200))
    yield from (address("/dead", type=type_of(dead)), address("/dead", fingerprint=fingerprint(error_of(dead))))
    yield address("/dead", error="nothing like this")
    for said in _filters(size, dead):
        yield address("/jobs", **said)


def _filters(size: Size, dead: int) -> Iterator[Mapping[str, object]]:
    """Filters that match many jobs, and filters that match few or none, for which a store scans many jobs."""
    middle = size.finished // 2
    yield {}
    states = ("pending", "scheduled", "due", "processing", "completed", "failed", "cancelled")
    yield from ({"state": state} for state in states)
    yield {"type": type_of(dead)}
    yield from ({"type": type_of(dead), "state": state} for state in ("pending", "completed", "failed"))
    yield from ({"tenant": tenant_of(0)}, {"tenant": "unknown"})
    yield from ({"worker": worker_of(1)}, {"worker": "unknown"})
    yield from ({"correlation": f"basket-{n // 3}"} for n in (size.jobs - 10, 3))
    yield from ({"after": _moment(60)}, {"before": _moment(180)}, {"after": _moment(190), "before": _moment(180)})
    yield from ({"error": "cservice crefused"}, {"error": "nothing like this"})
    yield {"error": "nothing like this", "state": "failed"}
    yield from ({"cursor": middle}, {"cursor": middle, "type": type_of(dead)}, {"cursor": middle, "state": "failed"})


def _moment(minutes_ago: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - 60 * minutes_ago))


# Measuring ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time of the server, and of the server of its store."""

    bench: Bench
    pid: int

    def seconds(self) -> float:
        """CPU seconds so far."""
        return alive_seconds(str(self.pid)) + self.bench.host.cpu_seconds()


@dataclass(slots=True)
class Taken:
    """The times of the requests for one page."""

    value_max: float
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def row(self, what: str) -> Row:
        """The row of the table; the target applies to p95."""
        p95 = sorted(self.wall_ms)[max(0, -(-95 * len(self.wall_ms) // 100) - 1)]
        said = f"{what}: p95 (p50 {median(self.wall_ms):.1f} ms, CPU {median(self.cpu_ms):.1f} ms)"
        return Row(part="pages", what=said, value=p95, unit="ms", value_max=self.value_max)


def _measured(bench: Bench, asks: Mapping[str, tuple[Ask, float]], cpu: Cpu, suffix: str = "") -> list[Row]:
    taken = {what: Taken(value_max) for what, (_, value_max) in asks.items()}
    for ask, _ in asks.values():
        ask()
    for number in range(1, REQUESTS + 1):
        bench.say(f"pages: request {number} of {REQUESTS} for each of {len(asks)} pages{suffix}")
        for what, (ask, _) in asks.items():
            _take(ask, taken[what], cpu)
    return [one.row(what + suffix) for what, one in taken.items()]


def _take(ask: Ask, taken: Taken, cpu: Cpu) -> None:
    cpu_before, began = cpu.seconds(), time.perf_counter()
    ask()
    taken.wall_ms.append((time.perf_counter() - began) * 1e3)
    taken.cpu_ms.append((cpu.seconds() - cpu_before) * 1e3)


class Client:
    """A browser's view of the server: a session and one persistent connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Accept": "text/html"}
        self._headers["Cookie"] = self._log_in()

    def page(self, path: str) -> Ask:
        """A request for a page."""

        def ask() -> None:
            self._get(self._connection, path, self._headers)

        return ask

    def metrics(self) -> None:
        """A request for the metrics, as Prometheus makes it."""
        self._get(self._connection, "/metrics", {"X-API-Key": KEY})

    def first_view(self) -> None:
        """The first page and its files, over a new connection, as in a browser without a cache."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        for asset in ASSET.findall(self._get(connection, "/ui", self._headers)):
            self._get(connection, asset.decode(), self._headers)
        connection.close()

    def wait_for_types(self, number: int) -> None:
        """Wait until the metrics, which are sampled every few seconds, show all types."""
        deadline = time.monotonic() + 60
        while self._get(self._connection, "/metrics", {"X-API-Key": KEY}).count(b'"many.') < number:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the metrics never showed {number} types")
            time.sleep(0.5)

    def _log_in(self) -> str:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/ui/login", urlencode({"key": KEY}), form)
        answer = self._connection.getresponse()
        answer.read()
        cookies: Iterable[str] = answer.headers.get_all("Set-Cookie") or ()
        return "; ".join(cookie.partition(";")[0] for cookie in cookies)

    def _get(self, connection: HTTPConnection, path: str, headers: dict[str, str]) -> bytes:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} returned {answer.status}: {body[:300]!r}")
        return body


# The store ------------------------------------------------------------------------------------------


@asynccontextmanager
async def _filled(bench: Bench) -> AsyncIterator[str]:
    """A filled store; a copy from an earlier run, if there is one."""
    folder = None if bench.keep is None else bench.keep / f"{bench.host.name}-{size_of(bench).jobs}"
    if folder is None:
        with bench.store() as url:
            await _populate(bench, url)
            yield url
        return
    if not folder.exists() or time.time() - folder.stat().st_ctime > KEPT_SECONDS_MAX:
        await _keep(bench, folder)
    bench.say(f"pages: a copy of {folder}")
    with bench.host.kept(folder) as url:
        yield url


async def _keep(bench: Bench, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with bench.store() as url:
        await _populate(bench, url)
        bench.host.loaded(url)
        bench.host.keep(url, folder)


async def _populate(bench: Bench, url: str) -> None:
    async with opened(url) as engine:
        await populate(bench, engine)


async def _prepare(url: str) -> None:
    async with opened(url) as engine:
        await surround(engine)


async def _many_types(bench: Bench, url: str) -> None:
    bench.say(f"pages: {MANY_TYPES:,} more types")
    async with opened(url) as engine:
        for n in range(MANY_TYPES):
            await _pass_through(engine, f"many.type-{n:04d}")


async def _pass_through(engine: Engine, type: str) -> None:
    """Add a completed job and a waiting one."""
    await engine.create([NewJob(type), NewJob(type)])
    leased = (await engine.activate([Demand(type, worker_of(0), 1)])).jobs
    await engine.settle([Complete(job.key, job.attempt) for job in leased])
