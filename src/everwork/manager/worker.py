"""What users subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from everwork.app.settings import WorkerSettings
from everwork.exceptions import BadConfiguration
from everwork.runtime.events import Event, collector_of_call


class AbstractWorker(ABC):
    """A worker: its settings, its work, and what it needs before and after.

    Each process has one instance of it. `__call__` gets the kwargs of an event, checked and coerced against its
    annotations; what it returns is the job's result. An argument annotated with `JobContext` or `EventCollector` is
    filled in.
    """

    @classmethod
    @abstractmethod
    def _get_settings(cls) -> WorkerSettings:
        """The worker's settings."""

    async def startup(self) -> None:  # noqa: B027 - not everybody needs it
        """Called once in each process before the first job."""

    async def shutdown(self) -> None:  # noqa: B027 - not everybody needs it
        """Called once in each process after the last job."""

    @abstractmethod
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work of one job."""

    def emit(self, event: Event) -> None:
        """Publish an event with the completion of the call that runs now: both happen, or neither."""
        collector = collector_of_call.get(None)
        if collector is None:
            raise BadConfiguration("emit: there is no call to publish it with; use a broker's push outside of __call__")
        collector.emit(event)
