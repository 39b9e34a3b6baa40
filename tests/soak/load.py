"""The load: producers at a steady rate, probes that measure latencies, and short visits of other callers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Self

import httpx

from everwork.client import Client
from everwork.exceptions import EverworkError, WrongState
from tests.soak.deployment import KEY, SERVERS, Deployment
from tests.soak.kinds import BIG, LATER, MIX, PROBE, PROBE_MANAGED, SERVED
from tests.soak.ledger import Ledger

_CALLS_MAX: Final = 100
"""The maximum number of creates in progress; a slower deployment gets less load."""
_PROBES: Final = {PROBE: "start stream", PROBE_MANAGED: "start manager"}
_PROBE_SECONDS: Final = 0.7
_START_SECONDS_MAX: Final = 120.0
_TIMEOUT_SECONDS: Final = 30.0
_BIG_TEXT: Final = "x" * 50_000
_REST_SHARE: Final = 0.3
_CANCEL_SHARE: Final = 0.3
_TWICE_SHARE: Final = 0.03


class Load:
    """Everything that calls the servers. The sampler empties `latencies` and `done`."""

    def __init__(self, deployment: Deployment, rate: float, rng: random.Random) -> None:
        self.ledger = Ledger()
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.done: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.deployment = deployment
        self.rng = rng
        self._rate = rate
        self._number = 0
        self._room = asyncio.Semaphore(_CALLS_MAX)
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self.clients: dict[str, Client] = {}
        self.https: dict[str, httpx.AsyncClient] = {}

    async def __aenter__(self) -> Self:
        for name in SERVERS:
            grpc = Client(self.deployment.grpc(name), key=KEY, timeout=_TIMEOUT_SECONDS)
            self.clients[name] = await self._stack.enter_async_context(grpc)
            self.https[name] = await self._stack.enter_async_context(self.new_http(name))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        await self._stack.aclose()

    def new_http(self, name: str) -> httpx.AsyncClient:
        """A REST client of a server, with its own connections."""
        # Without `verify=False`, every client would load the CA certificates.
        base, headers = self.deployment.http(name), {"X-API-Key": KEY}
        return httpx.AsyncClient(base_url=base, headers=headers, timeout=_TIMEOUT_SECONDS, verify=False)

    def any_server(self) -> str:
        """One of the servers."""
        return self.rng.choice(SERVERS)

    async def await_workers(self) -> None:
        """Wait until every worker has completed a job: startup is not part of the series."""
        client = self.clients[SERVERS[0]]
        for type in (types[0] for worker, types in SERVED.items() if worker in self.deployment.workers):
            created = await client.create(type, {"n": 0})
            self.ledger.create(type, created.key)
            await client.result(created.key, wait=_START_SECONDS_MAX)

    def begin(self) -> None:
        """Start producers and probes."""
        self.spawn(self._produce())
        for type in (one for one in _PROBES if one in self.deployment.served):
            self.repeat("probe", _PROBE_SECONDS, partial(self._probe, type))
        for name in SERVERS:
            self.repeat("readyz", _PROBE_SECONDS, partial(self._readyz, name))

    async def end(self) -> None:
        """Stop everything that is running."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Awaitable[None]) -> None:
        """Run something in the background."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def repeat(self, name: str, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        """Repeat something at about this interval; errors are counted."""

        async def go_on() -> None:
            while True:
                await asyncio.sleep(self.rng.uniform(0.5, 1.5) * seconds)
                await self.attempt(name, act)

        self.spawn(go_on())

    async def attempt(self, name: str, act: Callable[[], Awaitable[None]]) -> None:
        """Do something once; count it, and its errors."""
        try:
            await act()
            self.done[name] += 1
        except (EverworkError, httpx.HTTPError, OSError, TimeoutError) as error:
            self.problems[f"{name}: {type(error).__name__}"] += 1

    # Producers --------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        due = time.monotonic()
        kinds = [type for type in MIX if type in self.deployment.served]
        weights = [MIX[type] for type in kinds]
        while True:
            due = max(due + self.rng.expovariate(self._rate), time.monotonic() - 1)
            await asyncio.sleep(max(due - time.monotonic(), 0))
            await self._room.acquire()
            self.spawn(self._create(self.rng.choices(kinds, weights)[0]))

    async def _create(self, type: str) -> None:
        try:
            await self.attempt("create", lambda: self._created(type))
        finally:
            self._room.release()

    async def _created(self, type: str) -> None:
        self._number += 1
        variables: dict[str, Any] = {"n": self._number, "mail": f"person-{self._number % 997}@example.org"}
        options: dict[str, Any] = {"tenant": f"tenant-{self._number % 7}", "correlation_id": f"order-{self._number}"}
        if type == BIG:
            variables["text"] = _BIG_TEXT
        if self.rng.random() < _TWICE_SHARE:
            options["dedupe_key"] = f"once-{self._number}"
        started = time.monotonic()
        by_rest = self.rng.random() < _REST_SHARE
        try:
            create = self._by_rest if by_rest else self._by_grpc
            key = await create(type, variables, options)
        except BaseException:
            self.ledger.unanswered[type] += 1
            raise
        self.latencies["enqueue rest" if by_rest else "enqueue grpc"].append(time.monotonic() - started)
        self.ledger.create(type, key)
        if "dedupe_key" in options and await self._by_grpc(type, variables, options) != key:
            self.problems["create: a dedupe key gave two jobs"] += 1
        if type == LATER and self.rng.random() < _CANCEL_SHARE:
            await self._cancel(type, key)

    async def _cancel(self, type: str, key: int) -> None:
        try:
            await self.clients[self.any_server()].cancel(key, "not needed")
            self.ledger.cancel(type, key)
        except WrongState:
            return  # It has already run.
        except BaseException:
            self.ledger.forget(type, key)
            raise

    async def _by_grpc(self, type: str, variables: dict[str, Any], options: dict[str, Any]) -> int:
        delay = {"delay": self._delay()} if type == LATER else {}
        created = await self.clients[self.any_server()].create(type, variables, **options, **delay)
        return created.key

    def _delay(self) -> float:
        """A delay that is usually long enough for a cancel to arrive first."""
        return self.rng.uniform(0.2, 1) * self.deployment.longest_seconds

    async def _by_rest(self, type: str, variables: dict[str, Any], options: dict[str, Any]) -> int:
        delay = {"delay_ms": round(1_000 * self._delay())} if type == LATER else {}
        body = {"type": type, "variables": variables, **options, **delay}
        answer = (await self.https[self.any_server()].post("/api/v1/jobs", json=body)).raise_for_status()
        return int(answer.json()["key"])

    # Probes -----------------------------------------------------------------------------------------

    async def _probe(self, type: str) -> None:
        """Measure a single job: the time from just before its creation until its handler starts."""
        client = self.clients[SERVERS[0]]
        began = time.time()
        try:
            created = await client.create(type, {"n": 0})
        except BaseException:
            self.ledger.unanswered[type] += 1
            raise
        self.ledger.create(type, created.key)
        result = await client.result(created.key, wait=_TIMEOUT_SECONDS)
        self.latencies[_PROBES[type]].append(max(result["started"] - began, 0))

    async def _readyz(self, name: str) -> None:
        started = time.monotonic()
        answer = await self.https[name].get("/readyz")
        self.latencies[f"readyz {name}"].append(time.monotonic() - started)
        if answer.status_code != 200:
            self.problems[f"readyz: {answer.status_code}"] += 1
