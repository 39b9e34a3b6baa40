"""All pages and actions of the dashboard."""

from __future__ import annotations

from typing import Final

from everwork.server.http.ui.pages import (
    audit,
    dead_letters,
    job,
    job_new,
    job_type,
    jobs,
    keys,
    login,
    overview,
    policy,
    settings,
    triggers,
    types,
    workers,
)

MODULES: Final = (
    overview,
    jobs,
    job,
    job_new,
    dead_letters,
    types,
    job_type,
    policy,
    workers,
    triggers,
    keys,
    audit,
    settings,
    login,
)
PAGES: Final = tuple(page for module in MODULES for page in module.PAGES)
ACTIONS: Final = tuple(action for module in MODULES for action in module.ACTIONS)
