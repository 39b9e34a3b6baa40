"""What programs and files say of types, put over what the store says."""

from __future__ import annotations

import pytest

from everwork.codec.json import decode_policy_fields
from everwork.core.breaker import BreakerState
from everwork.engines.contract import Engine
from everwork.exceptions import InvalidInput
from everwork.service.policies import Declared, TypeDefaults, declare_policies, declare_settings
from tests.factories import TYPE, a_pending_job, a_policy


async def test_a_file_that_takes_a_breaker_away_closes_it(engine: Engine) -> None:
    await a_policy(engine, breaker_failures=3, max_running=2)
    await engine.open_breaker(TYPE, 60_000)
    await declare_settings(engine, Declared({TYPE: {"breaker_failures": None, "breaker_seconds": None}}))
    [known] = await engine.types()
    assert (known.breaker, decode_policy_fields(known.policy)) == (BreakerState.CLOSED, {"max_running": 2})


async def test_fields_that_contradict_what_was_said_before_are_refused_by_type_and_name(engine: Engine) -> None:
    await a_policy(engine, keep_failed_hours=12)
    with pytest.raises(InvalidInput, match=rf"types\.'{TYPE}'\.failed_job_retry_hours: must be less than keep_failed"):
        await declare_policies(engine, {TYPE: {"failed_job_retry_hours": 24}})
    [known] = await engine.types()
    assert decode_policy_fields(known.policy) == {"keep_failed_hours": 12}


async def policies(engine: Engine) -> dict[str, object]:
    return {info.type: decode_policy_fields(info.policy) for info in await engine.types()}


async def test_types_that_only_clients_use_get_the_defaults_once_and_never_over_values_of_their_own(
    engine: Engine,
) -> None:
    defaults = TypeDefaults(engine, Declared({"named": {}}, defaults={"breaker_failures": 3, "breaker_seconds": 60}))
    await a_policy(engine, type="own", breaker_seconds=10)
    await a_policy(engine, type="limited", max_running=2)
    await a_pending_job(engine, type="named")
    await a_pending_job(engine, type="plain")
    await defaults.fill()
    breaker = {"breaker_failures": 3, "breaker_seconds": 60}
    expected = {"limited": {"max_running": 2} | breaker, "named": {}, "own": {"breaker_seconds": 10}, "plain": breaker}
    assert await policies(engine) == expected
    await engine.set_policy("plain", None)
    await a_pending_job(engine, type="new")
    await defaults.fill()
    assert await policies(engine) == expected | {"plain": {}, "new": breaker}


async def test_a_default_that_does_not_fit_a_type_leaves_it_as_it_is(engine: Engine) -> None:
    await a_policy(engine, keep_failed_hours=12)
    await TypeDefaults(engine, Declared(defaults={"failed_job_retry_hours": 24})).fill()
    assert await policies(engine) == {TYPE: {"keep_failed_hours": 12}}


def test_defaults_that_are_off_need_not_be_given(engine: Engine) -> None:
    assert not TypeDefaults(engine, Declared(defaults={"breaker_failures": None})).is_needed
