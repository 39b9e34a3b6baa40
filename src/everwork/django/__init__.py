"""A backend for Django's tasks: add `everwork.django` to INSTALLED_APPS and name the backend in TASKS.

Names are loaded on first use, because Django imports this package before its settings are complete.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everwork.django.backend import EverworkBackend
    from everwork.django.running import job_context
    from everwork.django.task import EverworkTask
    from everwork.django.workers import worker

__all__ = ["EverworkBackend", "EverworkTask", "job_context", "worker"]

_MODULES = {
    "EverworkBackend": "everwork.django.backend",
    "EverworkTask": "everwork.django.task",
    "job_context": "everwork.django.running",
    "worker": "everwork.django.workers",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'everwork.django' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
