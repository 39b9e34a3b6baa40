"""Every page and action of the dashboard."""

from __future__ import annotations

from typing import Final

from everwork.server.http.ui import breakers, changes, job, jobs, login, one_type, overview, types

MODULES: Final = (overview, jobs, changes, job, types, one_type, breakers, login)
PAGES: Final = tuple(page for module in MODULES for page in module.PAGES)
ACTIONS: Final = tuple(action for module in MODULES for action in module.ACTIONS)
