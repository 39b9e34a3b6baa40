"""The registry: pauses, policies, groups, entries of any kind, turns, triggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from everwork.codec.json import decode_policy
from everwork.core.breaker import Breaker
from everwork.core.limits import DEFAULT_GROUP
from everwork.core.policy import TypePolicy
from everwork.core.queries import TypeInfo
from everwork.core.states import State
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.records import SEPARATOR, created, job_words
from everwork.engines.redis.wire import Word
from everwork.engines.rules import TOP_NAME, Passage, fired, if_ahead, with_breaker
from everwork.engines.values import Fire, Fired, Registered, TriggerMark, TriggerMarks

DROP_STEP = 10_000
_BETWEEN = "\0"


async def pause(link: Connection, type: str, paused: bool) -> None:
    """Stop or resume the activation of a type."""
    await link.call("registry", "pause", type, int(paused))


async def open_breaker(link: Connection, type: str, open_ms: int) -> None:
    """Let a type's breaker be open for so long."""
    await link.call("registry", "open_breaker", type, open_ms)


async def reset_breaker(link: Connection, type: str) -> bool:
    """Close a type's breaker; False if it was closed."""
    return bool(await link.call("registry", "reset_breaker", type))


async def set_policy(link: Connection, type: str, policy: str | None) -> None:
    """Keep a type's policy, and apart from it the numbers that the scripts need."""
    decoded = decode_policy(policy)
    words = (type, policy or "", decoded.retry.max_attempts, rules_text(decoded))
    more = await link.call("registry", "set_policy", *words)
    while more:
        more = await link.call("registry", "count_on")


async def upgrade(link: Connection) -> None:
    """Bring a store of an earlier version up to date: the numbers of the policies stand beside their texts."""
    for info in await types(link):
        if info.policy is not None:
            await set_policy(link, info.type, info.policy)
    await link.call("registry", "upgrade")


async def add_group(link: Connection, type: str, group: str) -> None:
    """Register a group of a type."""
    if group != DEFAULT_GROUP:
        await link.call("registry", "add_group", type, group)


async def drop_group(link: Connection, type: str, group: str) -> int:
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


async def types(link: Connection) -> list[TypeInfo]:
    """Every type that was ever seen."""
    now, *told = await link.read("registry", "types")
    infos = [
        _type_info(told[at].decode(), fields_of(told[at + 1]), int(now), is_probe_live=bool(told[at + 2]))
        for at in range(0, len(told), 3)
    ]
    return sorted(infos, key=lambda info: info.type)


async def register(link: Connection, kind: str, name: str, body: str, ttl_ms: int | None) -> None:
    """Write an entry."""
    await link.call("registry", "register", kind + _BETWEEN + name, "" if ttl_ms is None else ttl_ms, body)


async def unregister(link: Connection, kind: str, name: str) -> bool:
    """Take an entry away."""
    return bool(await link.call("registry", "unregister", kind + _BETWEEN + name))


async def registered(link: Connection, kind: str | None) -> list[Registered]:
    """The entries of a kind, or of all."""
    found: list[Registered] = []
    behind: Word = ""
    while True:
        behind, *told = await link.read("registry", "registered", "" if kind is None else kind + _BETWEEN, behind)
        found += _entries(told)
        if not behind:
            return sorted(found, key=lambda entry: entry[:2])


async def last_registered(link: Connection, kind: str, limit: int, below: str | None) -> list[Registered]:
    """The entries of a kind with the highest names."""
    first = kind + _BETWEEN
    top: Word = first + (TOP_NAME if below is None else below)
    found: list[Registered] = []
    while top and len(found) < limit:
        top, *told = await link.read("registry", "last_registered", first, top, limit - len(found))
        found += _entries(told)
    return found


async def take_turn(link: Connection, name: str, holder: str, ttl_ms: int) -> bool:
    """Take or prolong a turn."""
    return bool(await link.call("registry", "take_turn", name, holder, ttl_ms))


async def subscribe(link: Connection, type: str, worker: str) -> str:
    """The group of a worker class: the default one for the first that asks, one of its own for each other."""
    group: bytes = await link.call("registry", "subscribe", type, worker)
    return group.decode()


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


def _entries(told: list[Any]) -> list[Registered]:
    return [_entry(told[at].decode(), told[at + 1].decode()) for at in range(0, len(told), 2)]


def _entry(field: str, stored: str) -> Registered:
    kind, _, name = field.partition(_BETWEEN)
    until, _, body = stored.partition("\n")
    return Registered(kind, name, body, int(until) if until else None)


_WINDOW: Final = "window\n"

Fields = Mapping[str, str]
"""A type's hash; parts/traits.lua says what stands there."""


def fields_of(told: Sequence[Any]) -> Fields:
    """A hash as a script answers it, flat."""
    return {told[at].decode(): told[at + 1].decode() for at in range(0, len(told), 2)}


def rules_text(policy: TypePolicy) -> str:
    """The numbers of a policy, in the order in which parts/traits.lua reads them."""
    breaker, rate, again_ms = policy.breaker, policy.rate, policy.failed_job_retry_ms
    numbers = (
        breaker and breaker.failures, breaker and breaker.open_ms, policy.max_running, policy.max_running_per_key,
        rate and rate.jobs, rate and rate.window_ms, again_ms, again_ms and policy.failed_job_retry_rounds,
        policy.keep_ms(State.COMPLETED), policy.keep_ms(State.FAILED),
    )  # fmt: skip
    return " ".join("-" if number is None else str(number) for number in numbers)


def breaker_of(fields: Fields) -> Breaker:
    """What a type's breaker remembers."""
    probe, _, attempt = fields.get("probe", "").partition(" ")
    return Breaker(
        failures=int(fields.get("failures", 0)),
        open_until_ms=int(fields["breaker"]) if "breaker" in fields else None,
        probe_key=int(probe) if probe else None,
        probe_attempt=int(attempt or 0),
    )


def rate_full_until_ms(fields: Fields, group: str | None = None) -> int | None:
    """The end of the rate's window in which no more jobs may start; None while some may. Without a group: the last."""
    rate = decode_policy(fields.get("policy")).rate
    if rate is None:
        return None
    named = [name for name in fields if name.startswith(_WINDOW)] if group is None else [_WINDOW + group]
    windows = [fields[name].split() for name in named if name in fields]
    return max((int(since) + rate.window_ms for since, started in windows if int(started) >= rate.jobs), default=None)


async def trigger_marks(link: Connection, triggers: Sequence[str]) -> TriggerMarks:
    """Where triggers stand; those that have not begun do so now, which is safe to say twice."""
    now, *told = await link.read("registry", "trigger_marks", *triggers)
    return TriggerMarks(int(now), [_mark(body.decode()) for body in told])


async def fire(link: Connection, fires: Sequence[Fire]) -> list[Fired]:
    """Let time points pass that have not, and create their jobs."""
    if not fires:
        return []
    reply = await link.run("fire", _words(fires))
    judged = [_passage(told) for told in reply[: len(fires)]]
    jobs = [told for told in reply[len(fires) :] if told]
    return fired(fires, judged, created(jobs, len(jobs)))


def _words(fires: Sequence[Fire]) -> list[Word]:
    words: list[Word] = [len(fires)]
    for fire in fires:
        words += (fire.trigger, fire.point_ms)
    jobs = [(fire.job, number) for number, fire in enumerate(fires, 1) if fire.job is not None]
    if not jobs:
        return [*words, "0"]
    return [*words, "1", *job_words([job for job, _ in jobs], [number for _, number in jobs])]


def _passage(told: Any) -> Passage:
    passes, _, mark = told.decode().partition(" ")
    return Passage(passes == "1", _mark(mark))


def _mark(told: str) -> TriggerMark:
    """A mark as the scripts tell it; what is none they have replaced."""
    began, last = told.split()
    return TriggerMark(int(began), int(last))
