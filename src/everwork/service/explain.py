"""Explains why a job or a whole type is not running: the service's additions to the engine's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Final

from everwork.codec.json import decode_policy
from everwork.core.checks import shown
from everwork.core.instants import utc_text
from everwork.core.queries import Explanation, Reason, TypeInfo
from everwork.core.states import State
from everwork.engines.contract import Engine
from everwork.engines.rules import half_open_text, with_automatic_requeue
from everwork.exceptions import JobNotFound
from everwork.service.fleet.entries import ProcessEntry, WorkerEntry, WorkerView
from everwork.service.fleet.fleet import Fleet

TYPED_CHARS_MAX: Final = 60
"""The longest title used in a suggested command."""
BROKEN_CHARS_MAX: Final = 300
"""How much of a worker's startup error is quoted; the list of workers shows the full text."""

TAKERS_SHOWN: Final = 3


async def explain(engine: Engine, fleet: Fleet, key: int, *, sees_all: bool) -> Explanation:
    """Why a job is not running: the engine's answer, with details from the fleet and the policy.

    `sees_all`: the caller may see other tenants' jobs, and which workers are running and how busy they are.
    """
    explanation = await engine.explain(key)
    [job] = await engine.get([key])
    if explanation is None or job is None:
        raise JobNotFound(key)
    if explanation.state is State.FAILED:
        policy = next((info.policy for info in await engine.types() if info.type == job.type), None)
        return with_automatic_requeue(explanation, job, await engine.history(key), decode_policy(policy))
    if explanation.reason is Reason.NOT_ASKED and (takers := await fleet.takers(job.type, job.group)):
        return with_takers(explanation, takers, sees_workers=sees_all)
    if not sees_all and explanation.reason is Reason.BREAKER and explanation.until_ms is None:
        return replace(explanation, text=half_open_text(job.type))  # The probe may be another tenant's job.
    if sees_all and explanation.reason in (Reason.QUEUED, Reason.NOT_ASKED):
        return with_workers(explanation, await fleet.workers_for(job.type, job.group))
    return explanation


def with_takers(explanation: Explanation, takers: Sequence[ProcessEntry], *, sees_workers: bool) -> Explanation:
    """The explanation of a job whose workers are running but busy: they have not polled for its type for a while."""
    count, running = len(takers), sum(one.running for one in takers)
    names = ", ".join(one.name for one in takers[:TAKERS_SHOWN])
    more = f" and {count - TAKERS_SHOWN:,} more" if count > TAKERS_SHOWN else ""
    these, take, run = ("worker", "takes", "runs") if count == 1 else (f"{count:,} workers", "take", "run")
    text = f"{'1 ' if count == 1 else ''}{these} {take} this type"
    if sees_workers:
        busy = f" and {run} {running:,} job{'s' if running != 1 else ''} now" if running else ""
        text = f"{these} {names}{more} {take} this type{busy}"
    return replace(explanation, reason=Reason.QUEUED, text=f"ready: waiting for a free worker; {text}")


def with_workers(explanation: Explanation, workers: Sequence[WorkerView]) -> Explanation:
    """The explanation, extended if all workers of the job are disabled or failed to start."""
    text = _workers_text(workers)
    if text is None:
        return explanation
    # Other clients can also take such jobs, for example through the API.
    return replace(explanation, text=text if explanation.reason is Reason.NOT_ASKED else f"{explanation.text}; {text}")


def _workers_text(workers: Sequence[WorkerView]) -> str | None:
    off = [view.entry for view in workers if not view.is_on]
    broken = [view for view in workers if view.is_on and view.broken and not view.processes]
    if not workers or len(off) + len(broken) < len(workers):
        return None
    return "; ".join([*([_switched_off(off)] if off else []), *map(_broken, broken)])


def _switched_off(workers: Sequence[WorkerEntry]) -> str:
    names = " and ".join(shown(entry.title) for entry in workers)
    commands = "; ".join(f"everwork workers on {_shell_name(entry)}" for entry in workers)
    these, are, them = ("worker", "is", "it") if len(workers) == 1 else ("workers", "are", "them")
    return f"its {these} {names} {are} disabled; enable {them} with: {commands}"


def _broken(view: WorkerView) -> str:
    where, _, why = view.broken[0].partition(": ")
    return f"its worker {shown(view.entry.title)} fails to start in {where}: {_short(why)}"


def _short(why: str) -> str:
    line = " ".join(why.split())
    return line if len(line) <= BROKEN_CHARS_MAX else f"{line[:BROKEN_CHARS_MAX]}..."


def _shell_name(entry: WorkerEntry) -> str:
    """A worker as written on a command line: its title or, if that is hard to type, its id."""
    is_plain = entry.title.isprintable() and not entry.title.startswith("-") and len(entry.title) <= TYPED_CHARS_MAX
    return quote(entry.title) if is_plain else entry.id


FRESH_SECONDS: Final = 1.0


class BlockedTypes:
    """The paused types and open breakers, read at most once per second."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = asyncio.Lock()
        self._types: Mapping[str, TypeInfo] = {}
        self._read_at = float("-inf")

    async def reason(self, type: str, *, names_probe: bool) -> str | None:
        """Why no job of a type is leased, and until when; None if nothing prevents it."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now - self._read_at > FRESH_SECONDS:
                self._types = {info.type: info for info in await self._engine.types()}
                self._read_at = now
        info = self._types.get(type)
        return None if info is None else _block_text(info, names_probe=names_probe)


def _block_text(info: TypeInfo, *, names_probe: bool) -> str | None:
    if info.paused:
        return f"type '{info.type}' is paused until it is resumed"
    if info.breaker_open_until_ms is not None:
        until = utc_text(info.breaker_open_until_ms)
        return f"type '{info.type}' is stopped by its circuit breaker until {until}"
    if info.breaker_probe_key is not None:
        probe = f"its probe, job '{info.breaker_probe_key}', to succeed" if names_probe else "its probe to succeed"
        return f"type '{info.type}' is stopped by its circuit breaker, which waits for {probe}"
    return None
