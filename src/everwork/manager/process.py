"""Settings of processes: their workers, how many replicas, how they reconnect and are recycled."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from everwork.exceptions import BadConfiguration
from everwork.manager.worker import AbstractWorker
from everwork.runtime.dependencies.process import lifespan_plan
from everwork.runtime.middleware import MakeMiddleware, Middleware

MEBIBYTE: Final = 1_048_576
REPLICAS_MAX: Final = 1_000
Delay = Annotated[float, Field(ge=0.01, le=3_600)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Reconnect(_Settings):
    """How an unavailable engine is retried.

    Args:
        delays: Seconds before each retry; the last one is repeated.
        jitter: The share of each delay, from 0 to 1, that is randomized, so that a fleet does not reconnect in step.
        give_up_after: Seconds without a reply after which the process exits permanently. Default: never.
    """

    delays: tuple[Delay, ...] = Field(default=(0.1, 0.2, 0.5, 1.0, 2.0, 5.0), min_length=1, max_length=100)
    jitter: float = Field(default=0.5, ge=0, le=1)
    give_up_after: float | None = Field(default=None, gt=0, le=86_400)

    def pauses(self) -> Iterator[float]:
        """Yield the seconds to wait before each retry; ends when it is time to give up, counted from the first."""
        began, at = time.monotonic(), 0
        while self.give_up_after is None or time.monotonic() - began < self.give_up_after:
            delay = self.delays[min(at, len(self.delays) - 1)]
            yield delay * (1.0 - self.jitter * random.random())  # noqa: S311 - jitter, not a secret
            at += 1


class Recycle(_Settings):
    """When a process is replaced by a new one, for example to limit memory leaks. None means never.

    Args:
        jobs: After this many jobs.
        age: After this many seconds.
        memory: When it uses this many bytes of memory.
    """

    jobs: int | None = Field(default=None, ge=1)
    age: float | None = Field(default=None, ge=1)
    memory: int | None = Field(default=None, ge=MEBIBYTE)


class Process(_Settings):
    """One operating system process with one or more workers.

    Args:
        workers: The worker classes to run.
        shutdown_timeout: Seconds that cancelled calls and the workers' `shutdown()` get before the process is killed.
        reconnect: How it retries an unavailable engine.
        recycle: When it is replaced by a new process.
        middleware: `Middleware` classes, or functions that return an instance. The process creates each once and wraps
            every call of its workers; the first is the outermost.
        lifespan: A function with `@asynccontextmanager` and no parameters. The process enters it before the `startup()`
            of its workers and exits it after their `shutdown()`; handlers get the value it yields as `ctx.state`.
    """

    workers: list[type[AbstractWorker]] = Field(min_length=1, max_length=1_000)
    shutdown_timeout: float = Field(default=20.0, ge=0.1, le=3_600)
    reconnect: Reconnect = Reconnect()
    recycle: Recycle = Recycle()
    middleware: list[MakeMiddleware] = Field(default=[], max_length=100)
    lifespan: Callable[..., Any] | None = None

    @field_validator("workers", mode="before")
    @classmethod
    def _are_workers(cls, given: Any) -> Any:
        """Require a list of worker classes without duplicates."""
        if not isinstance(given, list | tuple):
            raise ValueError(f"must be a list of worker classes, not {given!r}")
        for one in given:
            if not (isinstance(one, type) and issubclass(one, AbstractWorker)):
                raise ValueError(f"must be subclasses of AbstractWorker (classes, not instances), not {one!r}")
            if given.count(one) > 1:
                raise ValueError(f"lists {one.__name__} twice; use ProcessGroup(replicas=...) or concurrency instead")
        return given

    @field_validator("middleware", mode="before")
    @classmethod
    def _can_be_made(cls, given: Any) -> Any:
        """Require middleware that a new process can import and create."""
        if not isinstance(given, list | tuple):
            raise ValueError(f"must be a list of subclasses of Middleware, not {given!r}")
        for one in given:
            is_other = isinstance(one, type) and not issubclass(one, Middleware)
            if is_other or not callable(one) or isinstance(one, Middleware):
                raise ValueError(f"must be subclasses of Middleware or functions that return an instance, not {one!r}")
            _require_importable(one)
        return given

    @field_validator("lifespan", mode="before")
    @classmethod
    def _can_be_entered(cls, given: Any) -> Any:
        """Require a lifespan that a new process can import and enter."""
        if given is not None:
            try:
                lifespan_plan(given)
            except BadConfiguration as error:
                raise ValueError(str(error).removeprefix("lifespan: ")) from None
            _require_importable(given)
        return given


def _require_importable(one: object) -> None:
    try:
        ForkingPickler.dumps(one)
    except Exception:  # noqa: BLE001 - an object may refuse in its own way
        raise ValueError(f"must be defined at the top level of a module, unlike {one!r}") from None


class ProcessGroup(_Settings):
    """Several replicas of one process: `ProcessGroup(process=Process(...), replicas=4)`."""

    process: Process
    replicas: int = Field(default=1, ge=1, le=REPLICAS_MAX)
