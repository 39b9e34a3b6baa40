"""What programs and files say of types, put over what the store says."""

from __future__ import annotations

import pytest

from everwork.codec.json import decode_policy_fields
from everwork.core.breaker import BreakerState
from everwork.engines.contract import Engine
from everwork.exceptions import InvalidInput
from everwork.service.policies import Declared, declare_policies, declare_settings
from tests.factories import TYPE, a_policy


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
