"""Why a job, or a whole type, is not running: what only the service knows, beside the engine's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Final

from everwork.core.checks import shown
from everwork.core.instants import utc_text
from everwork.core.queries import Explanation, Reason, TypeInfo
from everwork.engines.contract import Engine
from everwork.service.fleet.entries import WorkerEntry, WorkerView

TYPED_CHARS_MAX: Final = 60
"""The longest title that people are asked to type."""
BROKEN_CHARS_MAX: Final = 300
"""Of the reason why a worker does not start: the list of workers has all of it."""


def absent(explanation: Explanation, takers: Sequence[WorkerView]) -> Explanation:
    """Why a job waits, if all those for whom it waits are off or broken; as it was if there are none or some work."""
    text = _takers_text(takers)
    if text is None:
        return explanation
    # Others may take such jobs, too: whoever asks for them by the API, say.
    return replace(explanation, text=text if explanation.reason is Reason.NOT_ASKED else f"{explanation.text}; {text}")


def _takers_text(takers: Sequence[WorkerView]) -> str | None:
    off = [view.entry for view in takers if not view.is_on]
    broken = [view for view in takers if view.is_on and view.broken and not view.processes]
    if not takers or len(off) + len(broken) < len(takers):
        return None
    return "; ".join([*([_switched_off(off)] if off else []), *map(_broken, broken)])


def _switched_off(workers: Sequence[WorkerEntry]) -> str:
    names = " and ".join(shown(entry.title) for entry in workers)
    commands = "; ".join(f"everwork workers on {_in_a_shell(entry)}" for entry in workers)
    these, are, them = ("worker", "is", "it") if len(workers) == 1 else ("workers", "are", "them")
    return f"its {these} {names} {are} switched off; switch {them} on with: {commands}"


def _broken(view: WorkerView) -> str:
    where, _, why = view.broken[0].partition(": ")
    return f"its worker {shown(view.entry.title)} does not start in {where}: {_short(why)}"


def _short(why: str) -> str:
    line = " ".join(why.split())
    return line if len(line) <= BROKEN_CHARS_MAX else f"{line[:BROKEN_CHARS_MAX]}..."


def _in_a_shell(entry: WorkerEntry) -> str:
    """What names a worker on a command line: its id, if its title could not be typed as it is."""
    is_plain = entry.title.isprintable() and not entry.title.startswith("-") and len(entry.title) <= TYPED_CHARS_MAX
    return quote(entry.title) if is_plain else entry.id


FRESH_SECONDS: Final = 1.0


class BlockedTypes:
    """The paused types and the breakers that let nothing through, read at most once a second whoever asks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = asyncio.Lock()
        self._types: Mapping[str, TypeInfo] = {}
        self._read_at = float("-inf")

    async def of(self, type: str) -> str | None:
        """What keeps a type from being given out, and until when; None if nothing does."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now - self._read_at > FRESH_SECONDS:
                self._types = {info.type: info for info in await self._engine.types()}
                self._read_at = now
        info = self._types.get(type)
        return None if info is None else _block_text(info)


def _block_text(info: TypeInfo) -> str | None:
    if info.paused:
        return f"type '{info.type}' is paused until somebody resumes it"
    if info.breaker_open_until_ms is not None:
        until = utc_text(info.breaker_open_until_ms)
        return f"type '{info.type}' is stopped by its circuit breaker until {until}"
    if info.breaker_probe_key is not None:
        probe = f"its probe, job '{info.breaker_probe_key}', to succeed"
        return f"type '{info.type}' is stopped by its circuit breaker, which waits for {probe}"
    return None
