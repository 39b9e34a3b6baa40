"""What people and programs change about jobs that are there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everwork.core.leasing import Judged


class Changes(ABC):
    """Changes of jobs by their keys."""

    @abstractmethod
    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        """Cancel pending and processing jobs; the holder of a running one learns it by `check` or `extend`.

        Cancelling a cancelled job is REPEATED; completed and failed ones are WRONG_STATE. The state
        answered is the one in which the job was found.
        """

    @abstractmethod
    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        """Bring dead letters back: pending, due now, attempts 0, max_attempts as created, last error cleared.

        The attempt number goes on and the history stays. Any other state is WRONG_STATE.
        """

    @abstractmethod
    async def set_retries(self, key: int, retries: int) -> Judged:
        """Make the job show this many retries; the previous number is answered.

        Pending: 0 is WRONG_STATE (cancel it instead). Processing: 0 is taken as 1, the attempt that runs.
        A dead letter is requeued with `retries` attempts; 0 is REPEATED. Other states are WRONG_STATE. Counted
        attempts never pass 100, so a job that has used many may show fewer.
        """

    @abstractmethod
    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        """Let pending jobs run at `run_at_ms`, or `delay_ms` from now (0: run now). Others are WRONG_STATE."""

    @abstractmethod
    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        """Change the priority of pending jobs. Others are WRONG_STATE."""

    @abstractmethod
    async def delete(self, keys: Sequence[int]) -> list[Judged]:
        """Remove finished jobs with their payload, result, history and dedupe key. Live ones are WRONG_STATE."""
