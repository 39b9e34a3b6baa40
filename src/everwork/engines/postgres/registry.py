"""The registry: pauses, policies, groups, entries of any kind, turns."""

from __future__ import annotations

import asyncpg

from everwork.core.breaker import Breaker
from everwork.core.limits import DEFAULT_GROUP, SWEEP_STEP_MAX
from everwork.core.states import Cause
from everwork.engines.codec import decode_policy
from everwork.engines.postgres.change import cancel_rows
from everwork.engines.postgres.connections import first
from everwork.engines.postgres.parts import Parts
from everwork.engines.rules import TOP_NAME, told_breaker
from everwork.engines.values import Registered, TypeInfo


async def pause(parts: Parts, type: str, paused: bool) -> None:
    """Stop or resume the activation of a type."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    await parts.connections.rows(sql["pause"], type, paused)
    parts.notifier.tell_work([type])


async def reset_breaker(parts: Parts, type: str) -> bool:
    """Close a type's breaker; whether it was open."""
    was_open = first(await parts.connections.rows(parts.sql("registry")["reset_breaker"], type, parts.now_ms()))
    parts.notifier.tell_work([type])
    return bool(was_open)


async def set_policy(parts: Parts, type: str, policy: str | None) -> None:
    """Keep a type's policy."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    attempts = None if policy is None else decode_policy(policy).retry.max_attempts
    await parts.connections.rows(sql["set_policy"], type, policy, attempts)


async def add_group(parts: Parts, type: str, group: str) -> None:
    """Register a group of a type."""
    sql = parts.sql("registry")
    await parts.connections.rows(sql["make_type"], type)
    await parts.connections.rows(sql["add_group"], type, group)


async def drop_group(parts: Parts, type: str, group: str) -> int:
    """Forget a group and cancel what waits for it; the default group is not one that can be dropped."""
    sql = parts.sql("registry")
    queue = first(await parts.connections.rows(sql["drop_group"], type, group))
    cancelled = 0
    while queue is not None:
        keys = [key for (key,) in await parts.connections.look(sql["pending_of"], queue, SWEEP_STEP_MAX)]
        if not keys:
            break
        reason = f"group '{group}' was dropped"
        cancelled += len(await cancel_rows(parts, keys, Cause.CANCEL, reason, only_pending=True))
    return cancelled


async def types(parts: Parts) -> list[TypeInfo]:
    """Every type that was ever seen."""
    rows = await parts.connections.look(parts.sql("registry")["types"], parts.now_ms())
    return [
        # Only an open breaker's end is told.
        told_breaker(TypeInfo(name, paused, policy, tuple(groups), asked_at_ms), Breaker(0, open_until_ms), 0)
        for name, paused, policy, groups, asked_at_ms, open_until_ms in rows
    ]


async def register(parts: Parts, kind: str, name: str, body: str, ttl_ms: int | None) -> None:
    """Write an entry."""
    await parts.connections.rows(parts.sql("registry")["register"], kind, name, body, ttl_ms, parts.now_ms())


async def unregister(parts: Parts, kind: str, name: str) -> bool:
    """Take an entry away."""
    return bool(await parts.connections.rows(parts.sql("registry")["unregister"], kind, name, parts.now_ms()))


async def registered(parts: Parts, kind: str | None) -> list[Registered]:
    """The entries of a kind, or all."""
    sql, look = parts.sql("registry"), parts.connections.look
    # Two statements: a plan that must also serve "all" would read the whole registry for one kind.
    if kind is None:
        rows = await look(sql["all_registered"], parts.now_ms())
    else:
        rows = await look(sql["registered"], kind, parts.now_ms())
    return [Registered(*row) for row in rows]


async def last_registered(parts: Parts, kind: str, limit: int, below: str | None) -> list[Registered]:
    """The entries of a kind with the highest names."""
    top = TOP_NAME if below is None else below
    rows = await parts.connections.look(parts.sql("registry")["last_registered"], kind, top, limit, parts.now_ms())
    return [Registered(*row) for row in rows]


async def take_turn(parts: Parts, name: str, holder: str, ttl_ms: int) -> bool:
    """Take or prolong a turn."""
    return bool(await parts.connections.rows(parts.sql("registry")["take_turn"], name, holder, ttl_ms, parts.now_ms()))


async def subscribe(parts: Parts, type: str, worker: str) -> str:
    """The group of a worker class: the default one for the first that asks, one of its own for each other."""
    sql = parts.sql("registry")

    async def act(connection: asyncpg.Connection) -> str:
        await connection.execute(sql["make_type"], type)
        if await connection.fetchval(sql["subscribe"], type, worker) == worker:
            return DEFAULT_GROUP
        await connection.execute(sql["add_group"], type, worker)
        return worker

    return await parts.connections.run(act, in_transaction=True)


async def turn_left_ms(parts: Parts, name: str, holder: str) -> int:
    """How long a holder still has its turn: 0 if nobody has it, negative if somebody else does."""
    rows = await parts.connections.look(parts.sql("registry")["turn"], name, parts.now_ms())
    if not rows or rows[0][1] <= 0:
        return 0
    return int(rows[0][1]) * (1 if rows[0][0] == holder else -1)
