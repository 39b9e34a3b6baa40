"""Changing existing jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.core.leasing import Judged


class Changes(ABC):
    """Changes to jobs, by key."""

    @abstractmethod
    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        """Cancel pending and processing jobs; the worker of a running job finds out through `check` or `extend`.

        A job that is already cancelled is REPEATED; a completed or failed one is WRONG_STATE. The result carries the
        state in which the job was found.
        """

    @abstractmethod
    async def requeue(
        self, keys: Sequence[int], *, waiting: bool = False, variables: str | None = None
    ) -> list[Judged]:
        """Requeue dead letters: pending, due now, attempts 0, max_attempts as created, last error cleared.

        `waiting`: also requeue pending jobs that have had an attempt since they were created or last requeued, so that
        they do not wait for their retry; a job that is already due keeps its `run_at`. The attempt number keeps
        counting up and the history is kept. Anything else is WRONG_STATE.

        `variables`: JSON text that replaces the variables of each requeued job in the same step; the history entry of
        the requeue then has the error "arguments changed". Refused jobs keep their variables.
        """

    @abstractmethod
    async def set_retries(self, key: int, retries: int) -> Judged:
        """Set the number of retries that the job shows; the result carries the previous number.

        Pending: 0 is WRONG_STATE (cancel the job instead). Processing: 0 is treated as 1, the running attempt.
        A dead letter is requeued with `retries` attempts; 0 is REPEATED. Other states are WRONG_STATE. Counted
        attempts never exceed 100, so a job that has used many of them may show fewer retries than were set.
        """

    @abstractmethod
    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        """Run pending jobs at `run_at_ms`, or `delay_ms` from now (0: run now). Any other state is WRONG_STATE."""

    @abstractmethod
    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        """Change the priority of pending jobs. Any other state is WRONG_STATE."""

    @abstractmethod
    async def delete(self, keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Judged]:
        """Delete finished jobs with their payload, result, history and dedupe key. Live jobs are WRONG_STATE.

        `attempts`: the latest attempt of each job as the caller has seen it. A job that has had another attempt since
        then, because it was requeued, is WRONG_STATE, too.
        """
