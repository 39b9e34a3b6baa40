"""What the log says of a job: always with its process, its worker, its key and its attempt."""

from __future__ import annotations

from typing import Any

from everwork.logs import get_logger


class JobLog:
    """The log of one process's jobs."""

    def __init__(self, process: str) -> None:
        self._log = get_logger("everwork").bind(process=process)

    def warning(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Something went wrong with an attempt that is taken care of."""
        self._log.warning(text, worker=worker, key=key, attempt=attempt, **facts)

    def error(self, text: str, worker: str | None, key: int, attempt: int, **facts: Any) -> None:
        """Something went wrong with an attempt that somebody should look at."""
        self._log.error(text, worker=worker, key=key, attempt=attempt, **facts)
