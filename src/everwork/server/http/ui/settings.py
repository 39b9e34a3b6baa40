"""Settings in force, the engine's health, and what an examination of the store finds."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from typing import Any, Final

from everwork.server.http.ui.pages import Action, Page, View
from everwork.server.http.ui.texts import pretty
from everwork.server.http.ui.visit import Visit
from everwork.service.access import Permission
from everwork.service.doctor import MEANING, examine
from everwork.service.keys import host_clock

_BEGUN: Final = time.time()


async def show(visit: Visit) -> View:
    """All of it."""
    visit.principal.require(Permission.ADMIN)
    visit.principal.require_unbound()
    found = await examine(visit.parts.service.engine, host_clock)
    context: dict[str, Any] = {
        "found": found,
        "meaning": MEANING[found.health.durability],
        "settings": [(name, _shown(value)) for name, value in visit.parts.settings.shown().items()],
        "version": version("everwork"),
        "python": sys.version.split()[0],
        "begun_ms": round(_BEGUN * 1000),
    }
    return View("settings.html", context)


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return pretty(value) if isinstance(value, dict | list | tuple) else str(value)


PAGES = (Page("/ui/settings", show),)
ACTIONS: tuple[Action, ...] = ()
