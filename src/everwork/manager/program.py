"""The program that every new process imports: it must be there, and must not start its manager once more."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from everwork.exceptions import BadConfiguration
from everwork.manager.child import UNGUARDED
from everwork.manager.process_handle import NAME_PREFIX
from everwork.manager.run import UNGUARDED_TEXT


def require_importable_program(workers: Iterable[type]) -> None:
    """Refuse to run where processes cannot be started, before anything starts."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if process.name.startswith(NAME_PREFIX):
            os._exit(UNGUARDED)  # The manager that has started this process says it, once for all of them.
        raise BadConfiguration(UNGUARDED_TEXT)
    program = sys.modules["__main__"]
    if getattr(program, "__spec__", None) is not None:
        return  # Found by its name.
    file = getattr(program, "__file__", None)
    if file is None:
        _require_elsewhere(workers)
    elif not Path(file).exists():
        raise BadConfiguration(
            f"the process manager needs a program that new processes can import, and {file} is no file: "
            "save it, and run that"
        )


def _require_elsewhere(workers: Iterable[type]) -> None:
    for worker in workers:
        if worker.__module__ == "__main__":
            raise BadConfiguration(
                f"worker {worker.__name__}: must be defined in a module that new processes can import, "
                "not in a program that is no file (an interactive session, or python -c)"
            )
