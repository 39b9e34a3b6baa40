"""What the programs of the fleet share: how they start, which server they call, and what their tenant may see."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from everwork import Spool
from everwork.client import Client
from everwork.core.job import NewJob
from everwork.core.leasing import Judged
from everwork.core.outcome import Complete, Outcome
from everwork.exceptions import CallTimeout, EngineBusy, EngineUnavailable, EverworkError
from tests.torture import clocks, faults, mutants, plan
from tests.torture.history import HistoryWriter
from tests.torture.logged import LoggedEngine, Shown, wire_leased
from tests.torture.process import Life, die_with_the_controller, read_life

CALLER: Final = "EVERWORK_TORTURE_CALLER"
ADMIN: Final = "ek-torture-0123456789abcdef"
"""The key that the servers take from their environment; only the controller has it."""
TENANTS: Final = ("tenant-a", "tenant-b")
ZEEBE: Final = "torture-zeebe"
"""Run by workers that do not send attempt numbers."""
BULK: Final = "torture-bulk"
"""The type of most jobs. It has no additional group, so each create makes one job and not two."""
TYPES: Final = (*plan.TYPES, plan.MANAGED, ZEEBE, BULK)
SERVED: Final = (*plan.TYPES, BULK)
"""The types that workers with attempt numbers run, over any protocol."""
BRAKE: Final = "brake"
"""The name of a file that exists while producers must wait for the workers."""
CALL_SECONDS: Final = 6.0

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Caller:
    """The server that a client calls, and its tenant."""

    tenant: str
    key: str
    grpc_port: int
    http_port: int
    spool: str = ""
    unserved: tuple[str, ...] = ()
    """The types that no worker of this tenant runs."""

    def environment(self) -> dict[str, str]:
        """The environment from which `read_caller` reads."""
        return {CALLER: json.dumps(asdict(self))}

    @property
    def grpc_url(self) -> str:
        """The URL of the server for gRPC."""
        return f"grpc://127.0.0.1:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """The URL of the server for REST."""
        return f"http://127.0.0.1:{self.http_port}"


def read_caller() -> Caller:
    """The server that this process calls, and its tenant."""
    return Caller(**json.loads(os.environ[CALLER]))


Body = Callable[[Life, HistoryWriter, asyncio.Event], Awaitable[None]]


def main(body: Body) -> None:
    """Run a program until SIGTERM or SIGKILL."""
    life, history = begin()
    try:
        asyncio.run(_live(life, history, body))
    except BaseException as error:
        history.broken(error)
        raise


def begin() -> tuple[Life, HistoryWriter]:
    """Read the parameters of this process, and apply its mutant."""
    die_with_the_controller()
    clocks.follow()
    life = read_life(sys.argv[1:])
    if life.mutant in mutants.names(faults.engine_of(life.url)):
        mutants.apply(life.mutant, life.url)
    return life, HistoryWriter(life.file(life.life))


async def _live(life: Life, history: HistoryWriter, body: Body) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    history.joins()
    await body(life, history, stop)


# Tenants --------------------------------------------------------------------------------------------


def mark_of(tenant: str) -> str:
    """The text in every payload of a tenant, which no other tenant may see."""
    return f"mark<{tenant}>"


def of_tenant(job: NewJob, tenant: str) -> NewJob:
    """The same job, for a tenant, with its mark."""
    variables = json.loads(job.variables)
    if "mark" in variables:
        return job
    variables["mark"] = mark_of(tenant)
    if "trigger" in variables:
        variables["trigger"] = f"{variables['trigger']}-{tenant}"
    return job._replace(tenant=tenant, variables=json.dumps(variables))


def outcome_of_tenant(outcome: Outcome, tenant: str) -> Outcome:
    """The same outcome, but its new jobs belong to the tenant."""
    if isinstance(outcome, Complete) and outcome.events:
        return outcome._replace(events=tuple(of_tenant(event, tenant) for event in outcome.events))
    return outcome


class Eyes:
    """Checks everything that a server shows to a tenant, and logs what belongs to another tenant."""

    def __init__(self, history: HistoryWriter, tenant: str) -> None:
        self._history = history
        self._foreign = [(other, mark_of(other).encode()) for other in TENANTS if other != tenant]

    def look(self, where: str, shown: bytes | str) -> None:
        """Look for the marks of other tenants."""
        seen = shown.encode() if isinstance(shown, str) else shown
        for tenant, mark in self._foreign:
            if mark in seen:
                self._history.foreign(where, tenant)


@asynccontextmanager
async def engine_of(way: str, life: Life, history: HistoryWriter) -> AsyncIterator[RemoteEngine]:
    """The client for a protocol: `rest` or `grpc`."""
    from tests.torture.fleet.grpc_jobs import GrpcJobs  # noqa: PLC0415 - they import this module
    from tests.torture.fleet.rest_jobs import RestEngine, RestJobs  # noqa: PLC0415

    caller, name = read_caller(), f"{life.name}.{life.life}"
    eyes = Eyes(history, caller.tenant)
    if way == "rest":
        rest = RestJobs(caller, eyes, name)
        yield RestEngine(rest, history, caller.tenant)
        await rest.close()
    else:
        async with client_of(caller) as client:
            yield RemoteEngine(GrpcJobs(client, eyes, name), history, caller.tenant)


def client_of(caller: Caller) -> Client:
    """Our client; in offline mode, if the caller has a spool."""
    spool = Spool(caller.spool, patience=1.0) if caller.spool else None
    return Client(caller.grpc_url, key=caller.key, timeout=CALL_SECONDS, offline=spool)


# Calls ----------------------------------------------------------------------------------------------


class RemoteEngine(LoggedEngine):
    """The calls of a client to a server, with the engine's methods; each is logged.

    `engine` has the engine methods that are called. After a network error, the outcome of a call is unknown.
    """

    engine: Any

    def __init__(self, engine: Any, history: HistoryWriter, tenant: str) -> None:
        super().__init__(engine, history)
        self.tenant = tenant

    async def report(self, outcomes: Sequence[Outcome]) -> list[Judged | None]:
        """End attempts; the jobs that they create belong to the tenant. None: the result is unknown."""
        done = await self.settle([outcome_of_tenant(one, self.tenant) for one in outcomes])
        return [None] * len(outcomes) if done is None else [*done.judged]

    async def poll(
        self, type: str, limit: int, lease_ms: int, wait: float, group: str = ""
    ) -> list[plan.PolledJob] | None:
        """Lease jobs; if there are none, wait."""
        return await self._logged(
            "activate",
            [],
            lambda: self.engine.poll(type, limit, lease_ms, wait, group),
            lambda jobs: ([], [wire_leased(job) for job in jobs]),
        )

    async def create(self, requests: Sequence[plan.Request]) -> Any:
        """Create jobs of the tenant."""
        return await super().create([one._replace(job=of_tenant(one.job, self.tenant)) for one in requests])

    async def look(self, key: int) -> None:
        """Read a job that may belong to another tenant; `Eyes` checks that it is not shown."""
        with suppress(EverworkError):
            await self.engine.look(max(key, 1))

    async def _logged(
        self,
        name: str,
        items: Sequence[object],
        call: Callable[[], Awaitable[Answer]],
        wire: Callable[[Answer], Shown],
    ) -> Answer | None:
        call_id = self.history.invoked(name, items)
        try:
            answer = await call()
        except (EngineUnavailable, EngineBusy, CallTimeout) as error:
            self.history.unknown(call_id, error)
            return None
        except EverworkError as error:
            self.history.refused(call_id, error)
            return None
        self.history.answered(call_id, *wire(answer))
        return answer
