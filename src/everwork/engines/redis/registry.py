"""The registry: pauses, policies, groups, entries of any kind, turns."""

from __future__ import annotations

from typing import Any

from everwork.core.limits import DEFAULT_GROUP
from everwork.engines.codec import decode_policy
from everwork.engines.redis.link import Link
from everwork.engines.redis.texts import SEPARATOR
from everwork.engines.values import Registered, TypeInfo

DROP_STEP = 10_000
_BETWEEN = "\0"


async def pause(link: Link, type: str, paused: bool) -> None:
    """Stop or resume the activation of a type."""
    await link.call("registry", "pause", type, int(paused))


async def set_policy(link: Link, type: str, policy: str | None) -> None:
    """Keep a type's policy, and apart from it what new jobs take from it."""
    await link.call("registry", "set_policy", type, policy or "", decode_policy(policy).max_attempts)


async def add_group(link: Link, type: str, group: str) -> None:
    """Register a group of a type."""
    if group != DEFAULT_GROUP:
        await link.call("registry", "add_group", type, group)


async def drop_group(link: Link, type: str, group: str) -> int:
    """Forget a group and cancel what waits for it; the default group is not one that can be dropped.

    Differs from sqlite: the first step takes the group away, the cancelling goes on in bounded steps, because
    nobody else is served while a script runs. A sweep does what is left if this process ends in between.
    """
    if group == DEFAULT_GROUP:
        return 0
    cancelled = 0
    while some := int(await link.call("registry", "drop_group", type, group, DROP_STEP) or 0):
        cancelled += some
        if some < DROP_STEP:
            break
    return cancelled


async def types(link: Link) -> list[TypeInfo]:
    """Every type that was ever seen."""
    told = await link.read("registry", "types")
    return sorted((_type_info(told[at].decode(), told[at + 1]) for at in range(0, len(told), 2)), key=lambda i: i.type)


async def register(link: Link, kind: str, name: str, body: str, ttl_ms: int | None) -> None:
    """Write an entry."""
    await link.call("registry", "register", kind + _BETWEEN + name, "" if ttl_ms is None else ttl_ms, body)


async def unregister(link: Link, kind: str, name: str) -> bool:
    """Take an entry away."""
    return bool(await link.call("registry", "unregister", kind + _BETWEEN + name))


async def registered(link: Link, kind: str | None) -> list[Registered]:
    """The entries of a kind, or of all."""
    told = await link.read("registry", "registered")
    entries = [_entry(told[at].decode(), told[at + 1].decode()) for at in range(0, len(told), 2)]
    return sorted((entry for entry in entries if kind in (None, entry.kind)), key=lambda entry: entry[:2])


async def take_turn(link: Link, name: str, holder: str, ttl_ms: int) -> bool:
    """Take or prolong a turn."""
    return bool(await link.call("registry", "take_turn", name, holder, ttl_ms))


def _type_info(name: str, told: list[Any]) -> TypeInfo:
    fields = {told[at].decode(): told[at + 1].decode() for at in range(0, len(told), 2)}
    asked = [int(value) for field, value in fields.items() if field.startswith("asked\n")]
    groups = tuple(sorted(group for group in fields.get("groups", "").split(SEPARATOR) if group))
    return TypeInfo(name, fields.get("paused") == "1", fields.get("policy"), groups, max(asked, default=None))


def _entry(field: str, stored: str) -> Registered:
    kind, _, name = field.partition(_BETWEEN)
    until, _, body = stored.partition("\n")
    return Registered(kind, name, body, int(until) if until else None)
