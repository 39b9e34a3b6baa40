"""The policies that programs and settings files declare for types, kept in the store for all processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy, decode_policy_fields, encode_policy_fields
from everwork.core import checks
from everwork.core.breaker import CircuitBreaker
from everwork.core.policy import (
    POLICY_FIELDS,
    TypePolicy,
    declared_fields,
    policy_from,
)
from everwork.core.retry import DEFAULT_POLICY, RetryPolicy
from everwork.engines.contract import Engine
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")

PolicyFields = Mapping[str, Any]
"""The fields that are set in a policy. None resets a field to its default."""
OFF: Final = "off"
"""The value that resets a field in files, environment variables and commands, which have no null."""
BREAKER: Final = ("breaker_failures", "breaker_seconds")
DEFAULTED: Final = ("failed_job_retry_hours", "failed_job_retry_rounds", *BREAKER)
"""The fields that settings can set for all types."""
PAUSED: Final = "paused"


class Declared(NamedTuple):
    """The declarations in settings: policies by type, paused types, and defaults for all types."""

    types: Mapping[str, PolicyFields] = MappingProxyType({})
    paused: Mapping[str, bool] = MappingProxyType({})
    defaults: PolicyFields = MappingProxyType({})


NOTHING_DECLARED: Final = Declared()


async def declare_policies(engine: Engine, policies: Mapping[str, PolicyFields]) -> None:
    """Store the policies that a program declares, overridden by the settings of its process."""
    declared = {type: with_defaults(policies.get(type, {})) for type in (*policies, *_process_settings.types)}
    await _put(engine, {type: {**given, **_process_settings.types.get(type, {})} for type, given in declared.items()})
    await _pause(engine, _process_settings)


async def declare_settings(engine: Engine, declared: Declared) -> None:
    """Store the policies that settings declare."""
    await _put(engine, {type: {**declared.defaults, **given} for type, given in declared.types.items()})
    await _pause(engine, declared)


class TypeDefaults:
    """Applies default settings to types that nothing else declares: once each, never over a type's own values."""

    def __init__(self, engine: Engine, declared: Declared) -> None:
        self._engine = engine
        self._defaults = {name: value for name, value in declared.defaults.items() if value is not None}
        self._declared = declared.types.keys()
        self._known = set(self._declared)

    @property
    def is_needed(self) -> bool:
        """Whether there are defaults to apply."""
        return bool(self._defaults)

    async def fill(self) -> bool:
        """Apply the defaults to types that have appeared since the last call."""
        found = await self._engine.types()
        # A deleted type may be created again, without its policy.
        self._known &= {*self._declared, *(info.type for info in found)}
        for info in found:
            if info.type not in self._known:
                await self._give(info.type, info.policy)
                self._known.add(info.type)
        return False

    async def _give(self, type: str, stored: str | None) -> None:
        own = stored_fields(stored)
        taken = {*own, *(BREAKER if not own.keys().isdisjoint(BREAKER) else ())}
        after = {**own, **{name: value for name, value in self._defaults.items() if name not in taken}}
        try:
            _require_whole(type, after)
        except InvalidInput as error:
            log.warning(
                "the default policy conflicts with a type's own policy, which is kept", type=type, error=str(error)
            )
            return
        if after != own:
            await put_policy(self._engine, type, stored, encode_policy_fields(after))


def hold_settings(declared: Declared) -> None:
    """Apply these settings to the program that this process will run."""
    global _process_settings  # noqa: PLW0603 - a process has one settings file, just as it has one environment
    _process_settings = declared


async def _put(engine: Engine, policies: Mapping[str, PolicyFields]) -> None:
    """Update the stored policy of each type; unset fields are kept."""
    stored = {info.type: info.policy for info in await engine.types()} if any(policies.values()) else {}
    for type, given in policies.items():
        before = stored_fields(stored.get(type))
        after = merged_fields(before, given)
        if after != before:
            _require_whole(type, after)
            await put_policy(engine, type, stored.get(type), encode_policy_fields(after) if after else None)


async def put_policy(engine: Engine, type: str, before: str | None, after: str | None) -> None:
    """Set a policy. If it has no breaker rule, the breaker is reset: left open, it would stop the type."""
    await engine.set_policy(type, after)
    if decode_policy(before).breaker is not None and decode_policy(after).breaker is None:
        await engine.reset_breaker(type)


def _require_whole(type: str, given: PolicyFields) -> None:
    """Require that the stored and new fields are valid together."""
    try:
        policy_from(given)
    except InvalidInput as error:
        raise InvalidInput(f"types.{checks.shown(type)}.{error.field}", error.problem) from None


async def _pause(engine: Engine, declared: Declared) -> None:
    for type, is_paused in declared.paused.items():
        await engine.pause(type, is_paused)


def merged_fields(before: PolicyFields, given: PolicyFields) -> dict[str, Any]:
    """The stored fields, updated with the given ones."""
    return {name: value for name, value in {**before, **given}.items() if value is not None}


def stored_fields(text: str | None) -> dict[str, Any]:
    """The fields of a stored policy; empty if it cannot be read."""
    try:
        return decode_policy_fields(text)
    except (ValueError, TypeError):
        return {}


def fields_in_code(
    retry: RetryPolicy | None, breaker: CircuitBreaker | None, policy: TypePolicy | None
) -> dict[str, Any]:
    """The fields that code declares for a type: those of its policy, then `retry` and `breaker`.

    A `RetryPolicy` declares all its fields, even those equal to the default; `DEFAULT_POLICY` itself declares none.
    """
    given = {} if policy is None else declared_fields(policy)
    if retry is not None and retry is not DEFAULT_POLICY:
        given |= asdict(retry)
    if breaker is not None:
        given |= {"breaker_failures": breaker.failures, "breaker_seconds": breaker.seconds}
    return given


def retry_in_code(
    retry: RetryPolicy | None, policy: TypePolicy | None, default: RetryPolicy | None
) -> RetryPolicy | None:
    """The retry policy that code declares: the policy's own, if `retry` is left at its default."""
    if retry is default and policy is not None and policy.retry is not DEFAULT_POLICY:
        return policy.retry
    return retry


def attempts_in_code(type: str, given: PolicyFields) -> int | None:
    """How many attempts code allows, overridden by the settings of this process; None if neither sets it."""
    both = {**given, **_process_settings.types.get(type, {})}
    return (both["max_attempts"] or DEFAULT_POLICY.max_attempts) if "max_attempts" in both else None


# Settings ---------------------------------------------------------------------------------------------


def with_defaults(given: PolicyFields) -> dict[str, Any]:
    """The fields that code declares, with the defaults of settings and environment."""
    return {**defaults_in(os.environ), **_process_settings.defaults, **given}


def defaults_in(environ: Mapping[str, str]) -> dict[str, Any]:
    """The defaults that the environment sets for every declared type; empty variables are ignored."""
    given: dict[str, Any] = {}
    for name in DEFAULTED:
        variable = f"EVERWORK_{name.upper()}"
        if text := environ.get(variable):
            try:
                given[name] = require_default(name, checks.typed(text))
            except InvalidInput as error:
                raise BadConfiguration(f"{name} (environment variable {variable}): {error.problem}") from None
    return fields_from_texts(given)


def require_default(name: str, value: object) -> object:
    """The checked default of a field, as given; `off` unsets it."""
    if value != OFF:
        policy_from({name: value})
    return value


def types_from(value: object) -> Declared:
    """Parse the tables of a settings file, one per type; errors name the field."""
    if not isinstance(value, Mapping):
        raise InvalidInput("types", f'must be tables, such as [types."email-send"], not {checks.shown(value)}')
    types: dict[str, PolicyFields] = {}
    paused: dict[str, bool] = {}
    for type, table in value.items():
        try:
            given = _table(type, table)
            if PAUSED in given:
                paused[type] = _flag(given.pop(PAUSED))
            types[type] = fields_from_texts(given)
        except InvalidInput as error:
            raise InvalidInput(f"types.{checks.shown(type)}.{error.field}", error.problem) from None
    return Declared(types, paused)


def fields_from_texts(texts: PolicyFields) -> dict[str, Any]:
    """The checked fields of a file or command: `off` resets a field; for a count, it also resets the period."""
    given = {name: None if value == OFF else value for name, value in texts.items()}
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
            close = get_close_matches(name, allowed, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise InvalidInput(name[:80], f"unknown policy field; {hint}allowed: {', '.join(allowed)}")
    return dict(table)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(PAUSED, f"must be true or false, not {checks.shown(value)}")
    return value


_process_settings = NOTHING_DECLARED
