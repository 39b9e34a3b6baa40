"""Changes to jobs, by key: cancel, requeue, set_retries, reschedule, set_priority, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from everwork.core.leasing import Judged, Verdict
from everwork.core.limits import ATTEMPTS_MAX
from everwork.core.retry import remaining_retries
from everwork.engines.contract.changes import Changes
from everwork.engines.redis.opened import RedisBase
from everwork.engines.redis.records import STATE_OF, id_of, payload_of
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import CHANGED_ARGUMENTS

_VERDICTS: Final = {
    "accepted": Verdict.ACCEPTED,
    "repeated": Verdict.REPEATED,
    "wrong_state": Verdict.WRONG_STATE,
}


class RedisChanges(RedisBase, Changes):
    """Changes, each judged job by job in one script."""

    async def cancel(self, keys: Sequence[int], reason: str = "") -> list[Judged]:
        return await self._change("cancel", keys, reason)

    async def requeue(
        self, keys: Sequence[int], *, waiting: bool = False, variables: str | None = None
    ) -> list[Judged]:
        payload, note = ("", "") if variables is None else (payload_of(variables), CHANGED_ARGUMENTS)
        return await self._change("requeue", keys, int(waiting), payload, note)

    async def set_retries(self, key: int, retries: int) -> Judged:
        return (await self._change("set_retries", [key], retries, ATTEMPTS_MAX))[0]

    async def reschedule(self, keys: Sequence[int], *, run_at_ms: int | None = None, delay_ms: int = 0) -> list[Judged]:
        return await self._change("reschedule", keys, "" if run_at_ms is None else run_at_ms, delay_ms)

    async def set_priority(self, keys: Sequence[int], priority: int) -> list[Judged]:
        return await self._change("set_priority", keys, priority)

    async def delete(self, keys: Sequence[int], attempts: Sequence[int] | None = None) -> list[Judged]:
        found = await self._change("delete", keys, len(attempts or ()), *(attempts or ()))
        return [judged._replace(retries=None) for judged in found]

    async def _change(self, name: str, keys: Sequence[int], *args: Arg) -> list[Judged]:
        return [_judged(reply) for reply in await self._connection.run(name, [*args, *map(id_of, keys)])]


def _judged(reply: bytes) -> Judged:
    if not reply:
        return Judged(Verdict.NOT_FOUND)
    verdict, letter, attempts, max_attempts = reply.decode().split()
    state = STATE_OF[letter]
    return Judged(_VERDICTS[verdict], state, remaining_retries(state, int(attempts), int(max_attempts)))
