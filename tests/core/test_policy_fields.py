"""The declared fields of a policy agree with the policy that they set."""

from __future__ import annotations

from typing import Any

import pytest

from everwork.core.policy import DEFAULT_TYPE_POLICY, POLICY_FIELDS, fields_of, policy_from
from everwork.core.policy_fields import FIELDS, PolicyField
from everwork.exceptions import InvalidInput

NUMBERS = [one for one in FIELDS if one.kind in ("integer", "number")]
NEEDED: dict[str, dict[str, Any]] = {
    "rate_seconds": {"rate_jobs": 1},
    "failed_job_retry_hours": {"keep_failed_hours": 87_840.0},
}
"""What a field cannot be set without."""


def test_every_field_of_a_policy_is_declared_once_in_the_order_of_its_values() -> None:
    assert tuple(one.name for one in FIELDS) == POLICY_FIELDS == tuple(fields_of(DEFAULT_TYPE_POLICY))
    assert len({one.label for one in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize("field", NUMBERS, ids=lambda one: one.name)
def test_the_bounds_of_a_field_are_those_of_the_policy(field: PolicyField) -> None:
    low, high = (int(field.low), int(field.high)) if field.kind == "integer" else (field.low, field.high)
    for value in (low, high):
        assert field.check(value) == value
        policy_from({**NEEDED.get(field.name, {}), field.name: value})
    step = 1 if field.kind == "integer" else field.high * 1e-9 + 0.0005
    wrong: tuple[Any, ...] = (low - step, high + step, True, "5")
    for value in wrong:
        for check in (field.check, lambda one: policy_from({**NEEDED.get(field.name, {}), field.name: one})):
            with pytest.raises(InvalidInput) as refused:
                check(value)
            assert refused.value.field == field.name


def test_a_field_without_a_default_value_says_what_applies_instead() -> None:
    defaults = fields_of(DEFAULT_TYPE_POLICY)
    assert [one.name for one in FIELDS if defaults[one.name] in (None, []) and not one.unset] == []
