"""Which sort of error ended an attempt, and how long each sort waits."""

from __future__ import annotations

from typing import Any

import pytest

from everwork.core.classify import ErrorRule, Strategy, class_names, classify, delay_ms
from everwork.core.limits import ERROR_RULE_CHARS_MAX
from everwork.exceptions import InvalidInput

RETRYABLE, RATE_LIMITED = Strategy.RETRYABLE, Strategy.RATE_LIMITED
TEMPORARY, PERMANENT = Strategy.TEMPORARY, Strategy.PERMANENT


class CardUnknown(LookupError):
    """An error of a user's own."""


class Marked:
    """What an error may have as a second base."""


class MarkedError(Exception, Marked):
    """An error with two bases."""


def of_module(module: str) -> type[Exception]:
    """An error of a user's own, as a module defines it."""
    return type("Declined", (Exception,), {"__module__": module})


@pytest.mark.parametrize(
    "error",
    [ConnectionError(), ConnectionRefusedError(), BrokenPipeError(), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
def test_connections_and_timeouts_are_retryable_by_their_class(error: Exception) -> None:
    assert classify(class_names(error), "") is RETRYABLE


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("dial tcp 10.0.0.1:443: connection refused", RETRYABLE),
        ("Read TIMEOUT after 30 s", RETRYABLE),
        ("network unreachable", RETRYABLE),
        ("Temporary failure in name resolution", RETRYABLE),
        ("Rate limit exceeded", RATE_LIMITED),
        ("429 Too Many Requests", RATE_LIMITED),
        ("503 Service Unavailable", TEMPORARY),
        ("500 Internal Server Error", TEMPORARY),
        ("no such card", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("classes", [(), ("RuntimeError", "Exception")], ids=["text only", "unknown class"])
def test_a_text_says_what_the_class_does_not(classes: tuple[str, ...], text: str, strategy: Strategy | None) -> None:
    assert classify(classes, text) is strategy


def test_the_class_comes_before_the_text() -> None:
    assert classify(class_names(TimeoutError()), "429 too many requests") is RETRYABLE
    rules = [ErrorRule("permanent", text="no such card"), ErrorRule("temporary", exception=LookupError)]
    assert classify(class_names(CardUnknown()), "no such card", rules) is TEMPORARY


def test_rules_of_one_s_own_come_before_the_built_in_ones() -> None:
    rules = [ErrorRule("permanent", exception=TimeoutError), ErrorRule("temporary", text="too many requests")]
    assert classify(class_names(TimeoutError()), "", rules) is PERMANENT
    assert classify((), "429 Too Many Requests", rules) is TEMPORARY


def test_a_text_of_one_s_own_comes_before_a_built_in_class() -> None:
    rules = [ErrorRule("permanent", text="certificate expired")]
    assert classify(class_names(ConnectionError()), "ConnectionError: certificate expired", rules) is PERMANENT


def test_the_first_rule_that_matches_decides() -> None:
    rules = [ErrorRule("temporary", text="card"), ErrorRule("permanent", text="card unknown")]
    assert classify((), "card unknown", rules) is TEMPORARY


@pytest.mark.parametrize(
    "named", [CardUnknown, "CardUnknown", f"{__name__}.CardUnknown", LookupError, "LookupError", Exception]
)
def test_a_rule_may_name_a_class_or_its_base_in_every_way(named: type[BaseException] | str) -> None:
    assert classify(class_names(CardUnknown()), "", [ErrorRule("permanent", exception=named)]) is PERMANENT


@pytest.mark.parametrize("named", ["Card", "cardunknown", "elsewhere.CardUnknown", KeyError])
def test_a_rule_does_not_match_what_it_does_not_name(named: type[BaseException] | str) -> None:
    assert classify(class_names(CardUnknown()), "", [ErrorRule("permanent", exception=named)]) is None


@pytest.mark.parametrize("raised_in", ["__main__", "__mp_main__", "shop"])
@pytest.mark.parametrize("declared_in", ["__main__", "__mp_main__", "shop"])
def test_a_class_of_the_main_script_is_the_same_in_every_process_of_the_program(
    declared_in: str, raised_in: str
) -> None:
    rule = ErrorRule("permanent", exception=of_module(declared_in))
    assert classify(class_names(of_module(raised_in)()), "", [rule]) is PERMANENT


def test_a_class_of_the_main_script_is_no_other_of_nearly_its_name() -> None:
    rules = [ErrorRule("permanent", exception="shop.NotDeclined"), ErrorRule("permanent", exception="Decline")]
    assert classify(class_names(of_module("__main__")()), "", rules) is None


def test_the_names_of_a_class_are_those_of_all_its_bases_that_are_a_sort_of_error() -> None:
    assert class_names(MarkedError())[::2] == ("MarkedError", "Exception", f"{__name__}.Marked")
    assert "BaseException" not in class_names(MarkedError())


def test_a_text_rule_matches_in_any_case() -> None:
    assert classify((), "STRASSE GESPERRT", [ErrorRule("permanent", text="Straße gesperrt")]) is PERMANENT


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (RETRYABLE, [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]),
        (RATE_LIMITED, [60_000] * 10),
        (TEMPORARY, [10_000] * 10),
        (PERMANENT, [None] * 10),
    ],
)
def test_each_strategy_has_its_delays(strategy: Strategy, delays: list[int | None]) -> None:
    assert [delay_ms(strategy, attempts) for attempts in range(1, 11)] == delays
    assert delay_ms(strategy, 100) == delays[-1]


@pytest.mark.parametrize(
    ("rule", "field", "said"),
    [
        ({"strategy": "sometimes", "text": "x"}, "errors.strategy", "retryable, rate_limited, temporary, permanent"),
        ({"strategy": 7, "text": "x"}, "errors.strategy", "7"),
        ({"strategy": "permanent"}, "errors", "either"),
        ({"strategy": "permanent", "text": "x", "exception": "X"}, "errors", "either"),
        ({"strategy": "permanent", "text": " "}, "errors.text", "empty"),
        ({"strategy": "permanent", "text": ["x"]}, "errors.text", "string"),
        ({"strategy": "permanent", "text": "x" * (ERROR_RULE_CHARS_MAX + 1)}, "errors.text", "500"),
        ({"strategy": "permanent", "exception": ""}, "errors.exception", "empty"),
        ({"strategy": "permanent", "exception": int}, "errors.exception", "exception class"),
        ({"strategy": "permanent", "exception": 5}, "errors.exception", "string"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_its_field(rule: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        ErrorRule(**rule)
    assert caught.value.field == field
