"""The policies that programs and files declare for types, kept in the store so that every process decides alike."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy, decode_policy_fields, encode_policy_fields
from everwork.core import checks
from everwork.core.breaker import CircuitBreaker
from everwork.core.policy import (
    DEFAULT_TYPE_POLICY,
    POLICY_FIELDS,
    RETRY_FIELDS,
    TypePolicy,
    changed_fields,
    fields_of,
    policy_from,
)
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy
from everwork.engines.contract import Engine
from everwork.exceptions import BadConfiguration, InvalidInput

Said = Mapping[str, Any]
"""What somebody says of a policy, field by field. None: as usual, whatever was said before."""
OFF: Final = "off"
"""How files, variables and commands take a field back: they have no null."""
DEFAULTED: Final = ("failed_job_retry_hours", "failed_job_retry_rounds")
"""What settings may say for every type that a program or a file declares."""
PAUSED: Final = "paused"


class Declared(NamedTuple):
    """What settings say of types: their policies, which are paused and which are not, and what holds for all."""

    types: Mapping[str, Said] = MappingProxyType({})
    paused: Mapping[str, bool] = MappingProxyType({})
    defaults: Said = MappingProxyType({})


NOTHING_DECLARED: Final = Declared()


async def declare_policies(engine: Engine, policies: Mapping[str, Said]) -> None:
    """Let the store know what a program says of types, and over that what the settings of its process say."""
    declared = {type: with_defaults(policies.get(type, {})) for type in (*policies, *_held.types)}
    await _put(engine, {type: {**said, **_held.types.get(type, {})} for type, said in declared.items()})
    await _pause(engine, _held)


async def declare_settings(engine: Engine, declared: Declared) -> None:
    """Let the store know what settings say of types."""
    await _put(engine, {type: {**declared.defaults, **said} for type, said in declared.types.items()})
    await _pause(engine, declared)


def hold_settings(declared: Declared) -> None:
    """Let these settings hold for the program that this process will run."""
    global _held  # noqa: PLW0603 - as a process has one environment, it has one settings file
    _held = declared


async def _put(engine: Engine, policies: Mapping[str, Said]) -> None:
    """Put these fields over what the store says of each type; what is not mentioned stays."""
    stored = {info.type: info.policy for info in await engine.types()} if any(policies.values()) else {}
    for type, said in policies.items():
        before = said_of_stored(stored.get(type))
        after = put_over(before, said)
        if after != before:
            _require_whole(type, after)
            await put_policy(engine, type, stored.get(type), encode_policy_fields(after) if after else None)


async def put_policy(engine: Engine, type: str, before: str | None, after: str | None) -> None:
    """Set a policy. With its rule a breaker goes, too: one that stayed open would stop a type that has none."""
    await engine.set_policy(type, after)
    if decode_policy(before).breaker is not None and decode_policy(after).breaker is None:
        await engine.reset_breaker(type)


def _require_whole(type: str, said: Said) -> None:
    """What was said before and what is said now must go together."""
    try:
        policy_from(said)
    except InvalidInput as error:
        raise InvalidInput(f"types.{checks.shown(type)}.{error.field}", error.problem) from None


async def _pause(engine: Engine, declared: Declared) -> None:
    for type, is_paused in declared.paused.items():
        await engine.pause(type, is_paused)


def put_over(before: Said, said: Said) -> dict[str, Any]:
    """What is said of a policy after somebody has said more."""
    return {name: value for name, value in {**before, **said}.items() if value is not None}


def said_of_stored(text: str | None) -> dict[str, Any]:
    """What a stored policy says; nothing, if it cannot be read."""
    try:
        return decode_policy_fields(text)
    except (ValueError, TypeError):
        return {}


def said_in_code(
    retry: RetryPolicy | None, breaker: CircuitBreaker | None, policy: TypePolicy | None
) -> dict[str, Any]:
    """What code says of a type: its policy where that differs from the usual one; `retry` and `breaker` beat it.

    The one `DEFAULT_POLICY` says nothing, any other that is equal to it says that the usual shall hold.
    """
    said = {} if policy is None else changed_fields(policy)
    usual = fields_of(DEFAULT_TYPE_POLICY)
    if retry is not None and retry is not DEFAULT_POLICY:
        fields = fields_of(TypePolicy(retry=retry))
        said |= {name: None if fields[name] == usual[name] else fields[name] for name in RETRY_FIELDS}
    if breaker is not None:
        said |= {"breaker_failures": breaker.failures, "breaker_seconds": breaker.seconds}
    return said


def retry_in_code(
    retry: RetryPolicy | None, policy: TypePolicy | None, unsaid: RetryPolicy | None
) -> RetryPolicy | None:
    """The retries that code asks for: those of its policy, if `retry` is what stands for nothing said."""
    if retry is unsaid and policy is not None and policy.retry is not DEFAULT_POLICY:
        return policy.retry
    return retry


def attempts_in_code(type: str, said: Said) -> int | None:
    """How many attempts code allows, or over it the settings of this process; None: they say nothing."""
    both = {**said, **_held.types.get(type, {})}
    return (both["max_attempts"] or DEFAULT_POLICY.max_attempts) if "max_attempts" in both else None


# What settings say ------------------------------------------------------------------------------------


def with_defaults(said: Said) -> dict[str, Any]:
    """What code says of a type; where it says nothing, what the settings or the environment say for all."""
    return {**defaults_in(os.environ), **_held.defaults, **said}


def defaults_in(environ: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says for every type that is declared; an empty variable says nothing."""
    said: dict[str, Any] = {}
    for name in DEFAULTED:
        variable = f"EVERWORK_{name.upper()}"
        if text := environ.get(variable):
            try:
                said[name] = default_from(name, checks.typed(text))
            except InvalidInput as error:
                raise BadConfiguration(f"{name} (environment variable {variable}): {error.problem}") from None
    return said


def default_from(name: str, value: object) -> Any:
    """The checked value of a field that holds for all types; None: it is off."""
    if value == OFF:
        return None
    policy_from({name: value})
    return value


def types_from(value: object) -> Declared:
    """The tables of a settings file, one for each type that it names; each mistake is named by its place."""
    if not isinstance(value, Mapping):
        raise InvalidInput("types", f'must be tables, such as [types."email-send"], not {checks.shown(value)}')
    types: dict[str, Said] = {}
    paused: dict[str, bool] = {}
    for type, table in value.items():
        try:
            said = _table(type, table)
            if PAUSED in said:
                paused[type] = _flag(said.pop(PAUSED))
            types[type] = said_of_texts(said)
        except InvalidInput as error:
            raise InvalidInput(f"types.{checks.shown(type)}.{error.field}", error.problem) from None
    return Declared(types, paused)


def said_of_texts(said: Said) -> dict[str, Any]:
    """What a file or a command says of a policy, checked: `off` takes a field back, a number takes its time with it."""
    given = {name: None if value == OFF else value for name, value in said.items()}
    for number, seconds in (("breaker_failures", "breaker_seconds"), ("rate_jobs", "rate_seconds")):
        if number in given and given[number] is None:
            given.setdefault(seconds, None)
    policy_from(given)
    return given


def _table(type: object, table: object) -> dict[str, Any]:
    checks.name("type", type)
    if not isinstance(table, Mapping):
        raise InvalidInput("policy", f"must be a table, not {checks.shown(table)}")
    allowed = (*POLICY_FIELDS, PAUSED)
    for name in table:
        if name not in allowed:
            meant = get_close_matches(name, allowed, 1)
            hint = f"did you mean {meant[0]}? " if meant else ""
            raise InvalidInput(name[:80], f"is no field of a policy; {hint}allowed are {', '.join(allowed)}")
    return dict(table)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(PAUSED, f"must be true or false, not {checks.shown(value)}")
    return value


_held = NOTHING_DECLARED
