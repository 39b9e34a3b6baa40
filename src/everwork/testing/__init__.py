"""Test tools: run the jobs of an application on an in-memory store, with a virtual clock. See docs/how-to/testing.md.

Names are loaded on first use, because pytest imports this package at every start.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everwork.testing.clock import VirtualClock
    from everwork.testing.injection import FailEveryNth, FailTypes, SimulatedFailure
    from everwork.testing.rehearsal import rehearse
    from everwork.testing.simulation import Run
    from everwork.testing.stage import Stage, StillBusy, SyncStage

__all__ = [
    "FailEveryNth",
    "FailTypes",
    "Run",
    "SimulatedFailure",
    "Stage",
    "StillBusy",
    "SyncStage",
    "VirtualClock",
    "rehearse",
]

_MODULES = {
    "FailEveryNth": "everwork.testing.injection",
    "FailTypes": "everwork.testing.injection",
    "Run": "everwork.testing.simulation",
    "SimulatedFailure": "everwork.testing.injection",
    "Stage": "everwork.testing.stage",
    "StillBusy": "everwork.testing.stage",
    "SyncStage": "everwork.testing.stage",
    "VirtualClock": "everwork.testing.clock",
    "rehearse": "everwork.testing.rehearsal",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'everwork.testing' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
