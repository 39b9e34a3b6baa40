"""Settings in force, the engine's health, and what an examination of the store finds."""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from everwork.server.http.ui.page import Action, Page, View
from everwork.server.http.ui.redaction import pretty
from everwork.server.http.ui.timeline import pieces
from everwork.server.http.ui.visit import Visit
from everwork.server.settings import PREFIX, Settings
from everwork.service.access.keys import host_clock
from everwork.service.access.principal import Permission
from everwork.service.doctor import MEANING, Diagnosis
from everwork.service.monitor.sampler import MetricsSampler

HOLDS_SECONDS: Final = 10.0
"""An examination reads a good part of the store: whoever loads the page again and again sees the same one."""
_BEGUN_MS: Final = host_clock()
_USUAL: Final = Settings().shown()


class Examined(NamedTuple):
    """What was found, and when."""

    found: Diagnosis
    at_ms: int
    until: float


class Setting(NamedTuple):
    """A setting in force. `is_own`: somebody has set it, and not to what it is anyway."""

    name: str
    variable: str
    value: str
    is_own: bool


_examined: Final[WeakKeyDictionary[MetricsSampler, Examined]] = WeakKeyDictionary()
"""By the pulse, of which each server has one."""


async def show(visit: Visit) -> View:
    """All of it."""
    visit.principal.require(Permission.ADMIN)
    visit.principal.require_unbound()
    examined, parts = await _examination(visit), visit.parts
    context: dict[str, Any] = {
        "found": examined.found,
        "findings": [(one, pieces(one.text)) for one in examined.found.findings],
        "examined_ms": examined.at_ms,
        "meaning": MEANING[examined.found.health.durability],
        "unready": await parts.readiness.judge(),
        "upkeep_age_s": parts.service.upkeep_age_s,
        "reading": parts.sampler.reading,
        "settings": _settings(parts.settings),
        "versions": {"Everwork": version("everwork"), "Python": sys.version.split()[0]},
        "pid": os.getpid(),
        "begun_ms": _BEGUN_MS,
    }
    return View("settings.html", context)


async def _examination(visit: Visit) -> Examined:
    sampler = visit.parts.sampler
    last = _examined.get(sampler)
    if last is None or time.monotonic() > last.until:
        found = await visit.parts.service.examine(host_clock)
        last = Examined(found, host_clock(), time.monotonic() + HOLDS_SECONDS)
        _examined[sampler] = last
    return last


def _settings(settings: Settings) -> list[Setting]:
    """Those that somebody has set first."""
    found = [
        Setting(name, f"{PREFIX}{name.upper()}", _shown(name, value), value != _USUAL[name])
        for name, value in settings.shown().items()
    ]
    return sorted(found, key=lambda one: not one.is_own)


def _shown(name: str, value: object) -> str:
    if name.endswith("_port") and value == 0:
        return "0 (any that is free)"
    if value is None or value in ([], {}):
        return "not set"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return pretty(value) if isinstance(value, dict) else str(value)


PAGES = (Page("/ui/settings", show),)
ACTIONS: tuple[Action, ...] = ()
