"""Page: effective settings, the engine's health, and the doctor's findings."""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from everwork.aio.clocks import host_clock_ms
from everwork.server.http.ui.page import Action, Page, View
from everwork.server.http.ui.redaction import pretty
from everwork.server.http.ui.timeline import pieces
from everwork.server.http.ui.visit import Visit
from everwork.server.settings import PREFIX, Settings
from everwork.service.access.principal import Permission
from everwork.service.doctor import MEANING, Diagnosis
from everwork.service.monitor.sampler import MetricsSampler

CACHE_SECONDS: Final = 10.0
"""The checks read much of the store, so reloads within this time show the same results."""
_STARTED_MS: Final = host_clock_ms()
_DEFAULTS: Final = Settings().shown()


class Examination(NamedTuple):
    """The doctor's findings, and the time of the checks."""

    found: Diagnosis
    at_ms: int
    until: float


class Setting(NamedTuple):
    """An effective setting. `is_set`: it differs from the default."""

    name: str
    variable: str
    value: str
    is_set: bool


_examinations: Final[WeakKeyDictionary[MetricsSampler, Examination]] = WeakKeyDictionary()
"""The last examination by sampler; each server has one sampler."""


async def show(visit: Visit) -> View:
    """Show settings and health."""
    visit.principal.require(Permission.ADMIN)
    visit.principal.require_unbound()
    examination, app = await _examine(visit), visit.context
    context: dict[str, Any] = {
        "found": examination.found,
        "findings": [(one, pieces(one.text)) for one in examination.found.findings],
        "examined_ms": examination.at_ms,
        "meaning": MEANING[examination.found.health.durability],
        "unready": await app.readiness.check(),
        "upkeep_age_s": app.service.upkeep_age_s,
        "sample": app.sampler.latest,
        "spool": await app.service.spool_status(),
        "settings": [] if app.is_mounted else _settings(app.settings),
        "versions": {"Everwork": version("everwork"), "Python": sys.version.split()[0]},
        "pid": os.getpid(),
        "started_ms": _STARTED_MS,
    }
    return View("settings.html", context)


async def _examine(visit: Visit) -> Examination:
    sampler = visit.context.sampler
    last = _examinations.get(sampler)
    if last is None or time.monotonic() > last.until:
        found = await visit.context.service.examine(host_clock_ms)
        last = Examination(found, host_clock_ms(), time.monotonic() + CACHE_SECONDS)
        _examinations[sampler] = last
    return last


def _settings(settings: Settings) -> list[Setting]:
    """The settings; those that differ from the defaults come first."""
    found = [
        Setting(name, f"{PREFIX}{name.upper()}", _shown(name, value), value != _DEFAULTS[name])
        for name, value in settings.shown().items()
    ]
    return sorted(found, key=lambda one: not one.is_set)


def _shown(name: str, value: object) -> str:
    if name.endswith("_port") and value == 0:
        return "0 (any free port)"
    if value is None or value in ([], {}):
        return "not set"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return pretty(value) if isinstance(value, dict) else str(value)


PAGES = (Page("/settings", show),)
ACTIONS: tuple[Action, ...] = ()
