"""The registry: types with their pauses, policies and breakers, groups, entries of any kind, turns, triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.leasing import Verdict
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import State
from everwork.engines.contract.registry import Registry
from everwork.engines.contract.triggers import Triggers
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.opened import RedisBase
from everwork.engines.redis.records import SEPARATOR, created, job_args, pairs
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import TOP_NAME, Passage, fired, if_ahead, with_breaker
from everwork.engines.values import Fire, Fired, Registered, TriggerMark, TriggerMarks

DROP_STEP: Final = 10_000
FORGET_STEP: Final = 1_000
_KIND_END: Final = "\0"
"""Separates the kind from the name of an entry in one string."""
_WINDOW: Final = "window\n"

Fields = Mapping[str, str]
"""The hash of a type; parts/traits.lua names its fields."""


class RedisRegistry(RedisBase, Registry, Triggers):
    """The registry, one script with an action for each call; `fire` has its own script."""

    async def pause(self, type: str, paused: bool) -> None:
        await self._connection.call("registry", "pause", type, int(paused))

    async def open_breaker(self, type: str, open_ms: int) -> None:
        await self._connection.call("registry", "open_breaker", type, open_ms)

    async def reset_breaker(self, type: str) -> bool:
        return bool(await self._connection.call("registry", "reset_breaker", type))

    async def set_policy(self, type: str, policy: str | None) -> None:
        await _write_policy(self._connection, type, policy)

    async def add_group(self, type: str, group: str) -> None:
        connection = self._connection
        if group != DEFAULT_GROUP:
            await connection.call("registry", "add_group", type, group)

    async def drop_group(self, type: str, group: str) -> int:
        # Unlike SQLite, the first step removes the group and further steps cancel its jobs, because the server serves
        # no other client while a script runs. A sweep does the rest if this process ends in between.
        connection = self._connection
        if group == DEFAULT_GROUP:
            return 0
        cancelled = 0
        while step := int(await connection.call("registry", "drop_group", type, group, DROP_STEP) or 0):
            cancelled += step
            if step < DROP_STEP:
                break
        return cancelled

    async def types(self) -> list[TypeInfo]:
        return await _read_types(self._connection)

    async def delete_type(self, type: str) -> Verdict:
        # Differs from postgres: statistics are deleted in steps, because the server serves no other client while a
        # script runs. If a job is created in between, the type remains, without its statistics.
        connection = self._connection
        verdict = _verdict(await connection.read("registry", "deletable", type))
        if verdict is not Verdict.ACCEPTED:
            return verdict
        last_hour: Arg = ""
        while True:
            last_hour = await connection.call("registry", "delete_statistics", type, last_hour)
            if not last_hour:
                return _verdict(await connection.call("registry", "delete_type", type))

    async def forget_types(self, policies: Mapping[str, str | None], unused_ms: int) -> list[str]:
        names, forgotten = list(policies), list[str]()
        while names:
            pairs = [word for name in names[:FORGET_STEP] for word in (name, policies[name] or "")]
            checked, *gone = await self._connection.call("registry", "forget_types", unused_ms, *pairs)
            forgotten += [name.decode() for name in gone]
            names = names[int(checked) :]
        return forgotten

    async def register(self, kind: str, name: str, body: str, ttl_ms: int | None = None) -> None:
        ttl = "" if ttl_ms is None else ttl_ms
        await self._connection.call("registry", "register", kind + _KIND_END + name, ttl, body)

    async def unregister(self, kind: str, name: str) -> bool:
        return bool(await self._connection.call("registry", "unregister", kind + _KIND_END + name))

    async def registered(self, kind: str | None) -> list[Registered]:
        connection = self._connection
        prefix = "" if kind is None else kind + _KIND_END
        found: list[Registered] = []
        last_name: Arg = ""
        while True:
            last_name, *entries = await connection.read("registry", "registered", prefix, last_name)
            found += _entries(entries)
            if not last_name:
                return sorted(found, key=lambda entry: entry[:2])

    async def last_registered(self, kind: str, limit: int, below: str | None = None) -> list[Registered]:
        connection = self._connection
        prefix = kind + _KIND_END
        top: Arg = prefix + (TOP_NAME if below is None else below)
        found: list[Registered] = []
        while top and len(found) < limit:
            top, *entries = await connection.read("registry", "last_registered", prefix, top, limit - len(found))
            found += _entries(entries)
        return found

    async def take_turn(self, name: str, holder: str, ttl_ms: int) -> bool:
        return bool(await self._connection.call("registry", "take_turn", name, holder, ttl_ms))

    async def subscribe(self, type: str, worker: str) -> str:
        group: bytes = await self._connection.call("registry", "subscribe", type, worker)
        return group.decode()

    async def trigger_marks(self, triggers: Sequence[str]) -> TriggerMarks:
        # Treated as a read although it writes new triggers: writing them twice does no harm.
        now, *marks = await self._connection.read("registry", "trigger_marks", *triggers)
        return TriggerMarks(int(now), [_mark(mark.decode()) for mark in marks])

    async def fire(self, fires: Sequence[Fire]) -> list[Fired]:
        connection = self._connection
        if not fires:
            return []
        reply = await connection.run("fire", _fire_args(fires))
        passages = [_passage(text) for text in reply[: len(fires)]]
        ids = [id for id in reply[len(fires) :] if id]
        return fired(fires, passages, created(ids, len(ids)))


async def upgrade(connection: Connection) -> None:
    """Bring a store of an earlier version up to date by storing the numbers of policies separately."""
    for info in await _read_types(connection):
        if info.policy is not None:
            await _write_policy(connection, info.type, info.policy)
    await connection.call("registry", "upgrade")


async def _write_policy(connection: Connection, type: str, policy: str | None) -> None:
    """Store a policy, and separately the numbers that the scripts need."""
    decoded = decode_policy(policy)
    args = (type, policy or "", decoded.retry.max_attempts, rules_text(decoded))
    more = await connection.call("registry", "set_policy", *args)
    while more:
        more = await connection.call("registry", "count_on")


async def _read_types(connection: Connection) -> list[TypeInfo]:
    infos: dict[str, TypeInfo] = {}
    cursor: Arg = "0"
    while True:
        now, cursor, *types = await connection.read("registry", "types", cursor)
        for name, fields, has_probe in zip(types[::3], types[1::3], types[2::3], strict=True):
            if fields:  # Otherwise it was deleted between two calls.
                info = _type_info(name.decode(), fields_of(fields), int(now), is_probe_live=bool(has_probe))
                infos[info.type] = info
        if int(cursor) == 0:
            return [infos[name] for name in sorted(infos)]


def _type_info(name: str, fields: Fields, now_ms: int, *, is_probe_live: bool) -> TypeInfo:
    asked = [int(value) for field, value in fields.items() if field.startswith("asked\n")]
    info = TypeInfo(
        name,
        paused=fields.get("paused") == "1",
        policy=fields.get("policy"),
        groups=tuple(sorted(group for group in fields.get("groups", "").split(SEPARATOR) if group)),
        last_asked_ms=max(asked, default=None),
        rate_full_until_ms=if_ahead(rate_full_until_ms(fields), now_ms),
    )
    return with_breaker(info, breaker_of(fields), now_ms, is_probe_live=is_probe_live)


def fields_of(reply: Sequence[Any]) -> Fields:
    """A hash from the flat list that a script returns."""
    return {field.decode(): value.decode() for field, value in pairs(reply)}


def rules_text(policy: TypePolicy) -> str:
    """The numbers of a policy, in the order in which parts/traits.lua reads them."""
    breaker, rate, requeue_ms = policy.breaker, policy.rate, policy.failed_job_retry_ms
    numbers = (
        breaker and breaker.failures, breaker and breaker.open_ms, policy.max_running, policy.max_running_per_key,
        rate and rate.jobs, rate and rate.window_ms, requeue_ms, requeue_ms and policy.failed_job_retry_rounds,
        policy.keep_ms(State.COMPLETED), policy.keep_ms(State.FAILED),
    )  # fmt: skip
    return " ".join("-" if number is None else str(number) for number in numbers)


def breaker_of(fields: Fields) -> Breaker:
    """The stored breaker of a type."""
    probe, _, attempt = fields.get("probe", "").partition(" ")
    return Breaker(
        failures=int(fields.get("failures", 0)),
        open_until_ms=int(fields["breaker"]) if "breaker" in fields else None,
        probe_key=int(probe) if probe else None,
        probe_attempt=int(attempt or 0),
    )


def rate_full_until_ms(fields: Fields, group: str | None = None) -> int | None:
    """The end of the rate window of a group that has used up its rate, otherwise None; without a group, the latest
    end.
    """
    rate = decode_policy(fields.get("policy")).rate
    if rate is None:
        return None
    names = [name for name in fields if name.startswith(_WINDOW)] if group is None else [_WINDOW + group]
    windows = [fields[name].split() for name in names if name in fields]
    return max((int(since) + rate.window_ms for since, started in windows if int(started) >= rate.jobs), default=None)


def _verdict(reply: Any) -> Verdict:
    return Verdict(reply.decode())


def _entries(reply: Sequence[Any]) -> list[Registered]:
    return [_entry(name.decode(), stored.decode()) for name, stored in pairs(reply)]


def _entry(kind_and_name: str, stored: str) -> Registered:
    kind, _, name = kind_and_name.partition(_KIND_END)
    until, _, body = stored.partition("\n")
    return Registered(kind, name, body, int(until) if until else None)


def _fire_args(fires: Sequence[Fire]) -> list[Arg]:
    args: list[Arg] = [len(fires)]
    for fire in fires:
        args += (fire.trigger, fire.point_ms)
    jobs = [(fire.job, number) for number, fire in enumerate(fires, 1) if fire.job is not None]
    if not jobs:
        return [*args, "0"]
    return [*args, "1", *job_args([job for job, _ in jobs], [number for _, number in jobs])]


def _passage(reply: Any) -> Passage:
    passes, _, mark = reply.decode().partition(" ")
    return Passage(passes == "1", _mark(mark))


def _mark(text: str) -> TriggerMark:
    began, last = text.split()
    return TriggerMark(int(began), int(last))
