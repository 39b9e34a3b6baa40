"""The base class of users' workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from everwork.app.settings import WorkerSettings
from everwork.exceptions import BadConfiguration
from everwork.runtime.events import Event, collector_of_call


class AbstractWorker(ABC):
    """A worker: its settings, its handler, and what to do before the first and after the last job.

    Each process has one instance of it. `__call__` gets the kwargs of an event, validated and coerced against its
    annotations; what it returns is the job's result. An argument annotated with `JobContext` or `EventCollector` is
    injected, and so is one with `Depends`.
    """

    @classmethod
    @abstractmethod
    def _get_settings(cls) -> WorkerSettings:
        """The worker's settings."""

    async def startup(self) -> None:  # noqa: B027 - optional
        """Called once in each process before the first job."""

    async def shutdown(self) -> None:  # noqa: B027 - optional
        """Called once in each process after the last job."""

    @abstractmethod
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one job."""

    def emit(self, event: Event) -> None:
        """Publish an event atomically with the completion of the current call."""
        collector = collector_of_call.get(None)
        if collector is None:
            raise BadConfiguration("emit: there is no call to publish it with; use a broker's push outside of __call__")
        collector.emit(event)
