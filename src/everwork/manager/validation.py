"""Validates the workers and processes of a manager, and its program, before anything starts."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Final

from pydantic import ValidationError

from everwork.app.settings import WorkerSettings
from everwork.core.checks import shown
from everwork.core.limits import PROCESSES_MAX
from everwork.exceptions import BadConfiguration
from everwork.manager.child import UNGUARDED
from everwork.manager.process import Process, ProcessGroup
from everwork.manager.process_handle import NAME_PREFIX
from everwork.manager.worker import AbstractWorker
from everwork.runtime.handler import Arguments

UNGUARDED_TEXT: Final = (
    "new processes import the program, which must not run the manager again there: "
    'put asyncio.run(manager.run()) under `if __name__ == "__main__":`'
)


@dataclass(frozen=True, slots=True)
class Declared:
    """A worker class with its settings."""

    worker: type[AbstractWorker]
    settings: WorkerSettings


def declared(worker: type[AbstractWorker]) -> Declared:
    """Validate a worker class and read its settings; errors name the class."""
    name = worker.__name__
    if inspect.isabstract(worker):
        missing = ", ".join(sorted(worker.__abstractmethods__))
        raise BadConfiguration(f"worker {name}: must define {missing}")
    _require_importable(worker)
    try:
        settings = worker._get_settings()  # noqa: SLF001 - the name is public API
    except Exception as error:
        raise BadConfiguration(f"worker {name}: _get_settings failed: {_error_text(error)}") from error
    if not isinstance(settings, WorkerSettings):
        raise BadConfiguration(f"worker {name}: _get_settings must return a WorkerSettings, not {shown(settings)}")
    _require_callable(worker)
    return Declared(worker, settings)


def _require_callable(worker: type[AbstractWorker]) -> None:
    """Require async methods whose arguments can be validated."""
    name, call = worker.__name__, worker.__call__
    if not inspect.isfunction(call) or inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise BadConfiguration(f"worker {name}: __call__ must be an async function without yield")
    for step in ("startup", "shutdown"):
        if not inspect.iscoroutinefunction(getattr(worker, step)):
            raise BadConfiguration(f"worker {name}: {step} must be an async function")
    try:
        Arguments(MethodType(call, worker))
    except BadConfiguration as error:
        raise BadConfiguration(f"worker {name}: {error}") from None


def all_declared(processes: Iterable[Process]) -> dict[type[AbstractWorker], Declared]:
    """The workers of all processes, without duplicates; two workers with the same title are refused."""
    known: dict[type[AbstractWorker], Declared] = {}
    titles: dict[str, str] = {}
    for worker in (worker for process in processes for worker in process.workers):
        if worker in known:
            continue
        known[worker] = one = declared(worker)
        other = titles.setdefault(one.settings.title, worker.__name__)
        if len(titles) < len(known):
            raise BadConfiguration(
                f"workers {other} and {worker.__name__}: both have the title '{one.settings.title}'; titles must differ"
            )
    return known


def unused_rules(settings: WorkerSettings) -> list[str]:
    """The error rules of a policy that have no effect, because without a retry policy every error is permanent."""
    if settings.retry is not None or settings.policy is None:
        return []
    given = {"errors": settings.policy.errors, "strict": settings.policy.strict}
    return [name for name, value in given.items() if value]


def flat(processes: Sequence[Process | ProcessGroup]) -> list[Process]:
    """One entry per operating system process."""
    if not isinstance(processes, list | tuple) or not processes:
        raise BadConfiguration(f"processes: must be a list with at least one Process, not {shown(processes)}")
    single: list[Process] = []
    for at, one in enumerate(processes):
        match one:
            case Process():
                single.append(one)
            case ProcessGroup():
                single += [one.process] * one.replicas
            case _:
                raise BadConfiguration(f"processes[{at}]: must be a Process or a ProcessGroup, not {shown(one)}")
    if len(single) > PROCESSES_MAX:
        raise BadConfiguration(f"processes: must be at most {PROCESSES_MAX:,} with all replicas, not {len(single):,}")
    return single


def _require_importable(worker: type[AbstractWorker]) -> None:
    """Require a class that a new process can import by its name."""
    found: object = sys.modules.get(worker.__module__)
    for part in worker.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not worker:
        raise BadConfiguration(
            f"worker {worker.__name__}: must be defined at the top level of a module that a new process can import; "
            f"{worker.__module__}.{worker.__qualname__} is not"
        )


def _error_text(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return f"{type(error).__name__}: {error}"


def require_importable_program(workers: Iterable[type]) -> None:
    """Refuse a program that new processes cannot import, before anything starts."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name.startswith(NAME_PREFIX):
            os._exit(UNGUARDED)  # The manager that has started this process reports it, once for all of them.
        raise BadConfiguration(UNGUARDED_TEXT)
    program = sys.modules["__main__"]
    if getattr(program, "__spec__", None) is not None:
        return  # New processes import it by name.
    file = getattr(program, "__file__", None)
    if file is None:
        _require_elsewhere(workers)
    elif not Path(file).exists():
        raise BadConfiguration(
            f"the process manager needs a program that new processes can import, but {file} is not a file: "
            "save the program to a file and run that"
        )


def _require_elsewhere(workers: Iterable[type]) -> None:
    for worker in workers:
        if worker.__module__ == "__main__":
            raise BadConfiguration(
                f"worker {worker.__name__}: must be defined in a module that new processes can import, "
                "not in an interactive session or with python -c"
            )
