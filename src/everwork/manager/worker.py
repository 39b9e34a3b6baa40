"""The base class of worker classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from everwork.app.settings import WorkerSettings
from everwork.exceptions import BadConfiguration
from everwork.runtime.events import Event, collector_of_call


class AbstractWorker(ABC):
    """Base class of workers that a `ProcessManager` runs::

        class Mailer(AbstractWorker):
            @classmethod
            def _get_settings(cls) -> WorkerSettings:
                return WorkerSettings(title="mailer", sources={"order-paid"})

            async def __call__(self, order: int) -> None: ...

    Each process has one instance. `__call__` runs one job: it gets the `kwargs` of the event, validated against its
    annotations, and returns the job's result. Parameters annotated with `JobContext` or `EventCollector`, and those
    with `Depends`, are injected.
    """

    @classmethod
    @abstractmethod
    def _get_settings(cls) -> WorkerSettings:
        """Return the worker's settings."""

    async def startup(self) -> None:  # noqa: B027 - optional
        """Called once in each process, before the first job."""

    async def shutdown(self) -> None:  # noqa: B027 - optional
        """Called once in each process, after the last job."""

    @abstractmethod
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one job and return its result."""

    def emit(self, event: Event) -> None:
        """Publish an event in the same transaction as the completion of the current job.

        Raises `BadConfiguration` outside a call; use `push` of a broker there.
        """
        collector = collector_of_call.get(None)
        if collector is None:
            raise BadConfiguration("emit: must be called during a call of the worker; elsewhere, use a broker's push")
        collector.emit(event)
