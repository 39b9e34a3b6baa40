"""Everwork: a durable job engine. This module is the public door and holds nothing else.

Names are loaded when they are first used, so that a program pays only for what it takes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everwork.core.job import Job
    from everwork.core.retry import RetryPolicy
    from everwork.core.states import State
    from everwork.workers.app import Everwork
    from everwork.workers.context import JobContext
    from everwork.workers.function import JobFunction, JobKey

__all__ = ["Everwork", "Job", "JobContext", "JobFunction", "JobKey", "RetryPolicy", "State"]

_HOMES = {
    "Everwork": "everwork.workers.app",
    "Job": "everwork.core.job",
    "JobContext": "everwork.workers.context",
    "JobFunction": "everwork.workers.function",
    "JobKey": "everwork.workers.function",
    "RetryPolicy": "everwork.core.retry",
    "State": "everwork.core.states",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'everwork' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
