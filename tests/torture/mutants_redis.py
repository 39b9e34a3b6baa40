"""Ways to break the Redis engine: the text of its scripts, and when a call is made."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from everwork.engines import rules
from everwork.engines.redis import connection, scripts, settle
from tests.torture import mutants
from tests.torture.replacing import replace_source


def replace_text(name: str, old: str, new: str) -> None:
    """Change the text of a script, parts included."""
    sound: Callable[[str], scripts.Script] = vars(connection)["script"]
    assert old in sound(name).text, f"{name}.lua: {old!r} is no longer there"

    def script(wanted: str) -> scripts.Script:
        if wanted != name:
            return sound(wanted)
        text = sound(name).text.replace(old, new)
        return scripts.Script(text, hashlib.sha1(text.encode()).hexdigest())

    vars(connection)["script"] = script


def _drop_attempt_check() -> None:
    replace_text("settle", "r.state == 'r' and (attempt == r.attempt or attempt == '0')", "r.state == 'r'")


def _ack_before_commit() -> None:
    """A create is answered with the keys that it will have, and sent a moment later."""
    sound = connection.Connection.run
    state = {"last": 0}

    async def run(self: Any, name: str, args: Sequence[Any], *, replicas: int | None = None) -> Any:
        if name != "create":
            return await sound(self, name, args, replicas=replicas)
        self._late = asyncio.get_running_loop().create_task(_run_late(sound, self, args))
        state["last"] += 1
        return state["last"]

    connection.Connection.run = run  # type: ignore[method-assign]


async def _run_late(run: Callable[..., Any], self: Any, args: Sequence[Any]) -> None:
    await asyncio.sleep(0.02)
    await run(self, "create", args)


def _no_attempt_on_crash() -> None:
    counted = "local attempts, retry_at = r.attempts, ''"
    replace_text("lapse", counted, "local attempts, retry_at = r.attempts - 1, ''")


def _release_without_state_check() -> None:
    """Whatever is finished goes back to pending when somebody releases it."""
    guarded = "if r and is_live(r, attempt) then apply(id, record, r, outcome)"
    replace_text(
        "settle", guarded, guarded.replace("is_live(r, attempt)", "(is_live(r, attempt) or outcome[3] == 'release')")
    )


def _sweep_without_horizon() -> None:
    replace_text(
        "sweep",
        "call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT'",
        "call('ZRANGEBYSCORE', LEASES, '-inf', 9e15, 'LIMIT'",
    )
    replace_text("lapse", "and tonumber(call('ZSCORE', LEASES, id)) <= now", "")


def _counter_outside_transaction() -> None:
    """The counts of created jobs are written by a second call."""
    replace_text("create", "        count(copy, 'p', n)\n", "        redis.call('INCRBY', P .. ':uncounted', n)\n")
    replace_text("create", "  count_one('p', type, tenant)\n", "  redis.call('INCRBY', P .. ':uncounted', 1)\n")
    sound = connection.Connection.run

    async def run(self: Any, name: str, args: Sequence[Any], *, replicas: int | None = None) -> Any:
        answer = await sound(self, name, args, replicas=replicas)
        if name == "create":
            await _count_late(self)
        return answer

    connection.Connection.run = run  # type: ignore[method-assign]


_COUNT: Final = """
local n = redis.call('GET', KEYS[1] .. ':uncounted')
if n then redis.call('HINCRBY', KEYS[1] .. ':n', ARGV[1], n) end
redis.call('DEL', KEYS[1] .. ':uncounted')"""


async def _count_late(self: Any) -> None:
    """What the stories create: pending jobs of one type, of the default group and tenant."""
    wire = await self._connected()
    await wire.request("EVAL", _COUNT, 1, self._tag, "p\ntorture-work\n")


def _attempt_reused_after_release() -> None:
    replace_text(
        "settle",
        "tail_of(r, 'p', r.attempt, attempts,",
        "tail_of(r, 'p', verdict == 'release' and r.attempt - 1 or r.attempt, attempts,",
    )


def _attempt_reused_after_requeue() -> None:
    replace_text("requeue", "tail_of(r, 'p', r.attempt, 0,", "tail_of(r, 'p', 0, 0,")


def _dedupe_ignored() -> None:
    replace_text(
        "create",
        "if call('HSETNX', P .. ':dedupe', field, id) == 0 then",
        "call('HSET', P .. ':dedupe', field, id); if false then",
    )


def _events_without_completion() -> None:
    replace_text("settle", "function(owner) return completed[owner] end", "function(owner) return true end")


def _repeat_forgotten() -> None:
    replace_source(rules, "refused", "Judged(Verdict.REPEATED, state)", "Judged(Verdict.LEASE_LOST, state)")
    vars(settle)["refused"] = rules.refused


def _mark_not_guarded() -> None:
    replace_text("fire", "if not mark.last or tonumber(point) > tonumber(mark.last) then", "if true then")


def _handed_without_lease() -> None:
    """A create sends its job to the waiting worker, and stores it as pending, so that others take it, too."""
    replace_text("create", "if tonumber(sent) then", "if false then")


def _handed_for_good() -> None:
    """The lease of a job that was handed over does not expire: nothing takes the job back from a dead worker."""
    replace_text("create", "call('ZADD', P .. ':leases', ends, id)", "call('ZADD', P .. ':leases', 2 * ends, id)")


MUTATIONS: Final[dict[str, Callable[[], None]]] = {
    mutants.DROP_ATTEMPT_CHECK: _drop_attempt_check,
    mutants.ACK_BEFORE_COMMIT: _ack_before_commit,
    mutants.NO_ATTEMPT_ON_CRASH: _no_attempt_on_crash,
    mutants.RELEASE_WITHOUT_STATE_CHECK: _release_without_state_check,
    mutants.SWEEP_WITHOUT_HORIZON: _sweep_without_horizon,
    mutants.COUNTER_OUTSIDE_TRANSACTION: _counter_outside_transaction,
    mutants.ATTEMPT_REUSED_AFTER_RELEASE: _attempt_reused_after_release,
    mutants.ATTEMPT_REUSED_AFTER_REQUEUE: _attempt_reused_after_requeue,
    mutants.DEDUPE_IGNORED: _dedupe_ignored,
    mutants.EVENTS_WITHOUT_COMPLETION: _events_without_completion,
    mutants.REPEAT_FORGOTTEN: _repeat_forgotten,
    mutants.MARK_NOT_GUARDED: _mark_not_guarded,
    mutants.HANDED_WITHOUT_LEASE: _handed_without_lease,
    mutants.HANDED_FOR_GOOD: _handed_for_good,
}
