"""Every bad value is refused by an error that names its field and says what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everwork.core import checks
from everwork.core.limits import KEY_MAX
from everwork.core.states import State
from everwork.exceptions import InvalidInput, JobNotFound

NOT_NUMBERS: list[object] = [None, True, False, "3", b"3", [], {}, 3j]


@pytest.mark.parametrize("value", [1, 2, 10])
def test_a_whole_number_within_its_bounds_is_taken(value: int) -> None:
    assert checks.whole_number("limit", value, 1, 10) == value


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 0, 11, -1, 1.0, float("nan")], ids=repr)
def test_anything_else_is_not_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^limit: must be a whole number from 1 to 10, not ") as caught:
        checks.whole_number("limit", value, 1, 10)
    assert caught.value.field == "limit"


@pytest.mark.parametrize("value", [0, 0.5, 10, 10.0])
def test_a_number_within_its_bounds_is_taken(value: float) -> None:
    assert checks.number("delay", value, 0, 10) == value


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -0.1, 10.1, float("nan"), float("inf"), float("-inf")], ids=repr)
def test_anything_else_is_not_a_number(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^delay: must be a number from 0 to 10, not ") as caught:
        checks.number("delay", value, 0, 10)
    assert caught.value.field == "delay"


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (1, 1_000), (0.25, 250), (0.0004, 0), (2.0006, 2_001)])
def test_seconds_become_whole_milliseconds(seconds: float, expected: int) -> None:
    assert checks.milliseconds("timeout", seconds, 0, 10) == expected


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1, 11, float("nan")], ids=repr)
def test_bad_seconds_are_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^timeout: must be a number from 0 to 10"):
        checks.milliseconds("timeout", value, 0, 10)


@pytest.mark.parametrize("value", ["a", "email-send", "with space", "ünï-cødé", "日本", "x" * 255])
def test_a_printable_name_is_taken(value: str) -> None:
    assert checks.name("type", value) == value


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("", "1 to 255 characters, not 0"),
        ("x" * 256, "1 to 255 characters, not 256"),
        ("a\nb", "printable"),
        ("a\x00b", "printable"),
        ("a\u202eb", "printable"),
        ("\ud800", "printable"),
        (None, "string"),
        (3, "string"),
        (b"a", "string"),
    ],
    ids=ascii,
)
def test_anything_else_is_not_a_name(value: object, allowed: str) -> None:
    with pytest.raises(InvalidInput, match=allowed) as caught:
        checks.name("type", value)
    assert caught.value.field == "type"


@pytest.mark.parametrize(("value", "expected"), [(1, 1), ("1", 1), (KEY_MAX, KEY_MAX), (str(KEY_MAX), KEY_MAX)])
def test_a_job_key_is_a_number_or_its_decimal_text(value: object, expected: int) -> None:
    assert checks.job_key(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        KEY_MAX + 1,
        "",
        "0",
        "-1",
        "1.0",
        " 1",
        "1_0",
        "٣",
        "²",
        str(KEY_MAX + 1),
        "9" * 5_000,
        1.0,
        True,
        None,
        b"1",
    ],
    ids=ascii,
)
def test_anything_else_is_not_a_job_key(value: object) -> None:
    with pytest.raises(InvalidInput, match=rf"^job: must be a job key, a whole number from 1 to {KEY_MAX}") as caught:
        checks.job_key(value, "job")
    assert caught.value.field == "job"


@pytest.mark.parametrize("key", [1, 17, KEY_MAX])
def test_a_key_that_a_caller_sent_is_a_number(key: int) -> None:
    assert checks.known_key(str(key)) == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("atom-jobkey12345", "Job 'atom-jobkey12345' not found"),
        ("0", "Job '0' not found"),
        ("007", "Job '007' not found"),
        ("-1", "Job '-1' not found"),
        ("٣", "Job '٣' not found"),
        ("1\n2\0", r"Job '1\n2\x00' not found"),
        ("\ud800", r"Job '\ud800' not found"),
        (str(KEY_MAX + 1), f"Job '{KEY_MAX + 1}' not found"),
        ("9" * 5_000, f"Job '{'9' * 60}...' not found"),
    ],
    ids=ascii,
)
def test_a_key_of_another_form_is_a_job_that_does_not_exist(text: str, message: str) -> None:
    with pytest.raises(JobNotFound) as caught:
        checks.known_key(text)
    assert (str(caught.value), caught.value.key) == (message, 0)


def test_a_key_that_was_not_sent_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"^job_key: is required$"):
        checks.known_key("", "job_key")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (State.FAILED, State.FAILED),
        ("pending", State.PENDING),
        ("PROCESSING", State.PROCESSING),
        ("Completed", State.COMPLETED),
        ("cancelled", State.CANCELLED),
        ("queued", State.PENDING),
        ("running", State.PROCESSING),
        ("activated", State.PROCESSING),
        ("error", State.FAILED),
    ],
)
def test_a_state_is_known_by_its_name_in_either_case_or_by_a_synonym(value: object, expected: State) -> None:
    assert checks.state(value) is expected


@pytest.mark.parametrize("value", ["", "done", "pending ", 1, None, True, b"pending"], ids=repr)
def test_anything_else_is_not_a_state(value: object) -> None:
    with pytest.raises(InvalidInput, match="pending, processing, completed, failed, cancelled") as caught:
        checks.state(value, "status")
    assert caught.value.field == "status"


@pytest.mark.parametrize("value", ["ACTIVATABLE", "activatable", "Activatable"])
def test_activatable_jobs_are_pending_and_due(value: str) -> None:
    assert checks.state_filter(value) == (State.PENDING, True)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("pending", State.PENDING),
        ("QUEUED", State.PENDING),
        ("Running", State.PROCESSING),
        ("ACTIVATED", State.PROCESSING),
        ("error", State.FAILED),
        (State.CANCELLED, State.CANCELLED),
    ],
)
def test_any_other_state_is_filtered_by_whether_or_not_it_is_due(value: object, expected: State) -> None:
    assert checks.state_filter(value) == (expected, False)


def test_a_filter_by_what_is_no_state_is_refused_by_the_field_s_name() -> None:
    with pytest.raises(InvalidInput, match="pending, processing, completed, failed, cancelled") as caught:
        checks.state_filter("ready", "status")
    assert caught.value.field == "status"


def test_activatable_is_a_filter_and_not_a_state() -> None:
    with pytest.raises(InvalidInput):
        checks.state("ACTIVATABLE")


def test_a_long_value_is_shown_short_and_on_one_line() -> None:
    shown = checks.shown("line\n" * 1_000)
    assert len(shown) == 80
    assert "\n" not in shown


def test_a_number_too_long_to_be_written_is_still_refused_by_its_field() -> None:
    with pytest.raises(InvalidInput, match="must be a whole number from 1 to 10"):
        checks.whole_number("limit", 10**5_000, 1, 10)


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(value=anything.filter(lambda value: not (isinstance(value, str) and len(value) >= 1 and value.isprintable())))
def test_whatever_is_not_a_name_is_refused_by_its_field(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^field: must ") as caught:
        checks.name("field", value)
    assert caught.value.field == "field"


@given(key=st.integers(1, KEY_MAX))
def test_a_job_key_is_read_back_from_its_text(key: int) -> None:
    assert checks.job_key(str(key)) == checks.job_key(key) == key


def test_a_value_that_nobody_can_write_out_is_shown_by_its_kind() -> None:
    deep: tuple[object, ...] = ()
    for _ in range(100_000):  # Python 3.14 writes out ten thousand levels.
        deep = (deep,)
    assert checks.shown(deep) == "a tuple too long to show"


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [1, "a", None, 2.5, [True], {"a": [{}]}],
        {"name": {"other": ["it's", b"raw"]}, 7: ()},
        ["x" * 300],
        {"x" * 300: 1},
        list(range(100)),
    ],
)
def test_a_value_is_shown_as_python_writes_it(value: object) -> None:
    written = repr(value)
    assert checks.shown(value) == (written if len(written) <= 80 else f"{written[:77]}...")


class Unwritable:
    """A value that must not be written out."""

    def __repr__(self) -> str:
        raise AssertionError("nobody sees this part")


def test_of_a_large_value_no_more_is_written_out_than_is_shown() -> None:
    assert checks.shown([*range(40), Unwritable()]).startswith("[0, 1, 2")
    assert checks.shown({"list": ["x" * 90], "more": Unwritable()}).startswith("{'list': ['xx")


def test_states_of_a_filter_are_taken_together() -> None:
    assert checks.state_filters(["failed", "FAILED", "completed"]) == (
        frozenset({State.FAILED, State.COMPLETED}),
        False,
    )
    assert checks.state_filters(["activatable", "ACTIVATABLE"]) == (frozenset({State.PENDING}), True)
    assert checks.state_filters([]) == (frozenset(), False)


@pytest.mark.parametrize("other", ["failed", "pending"])
def test_activatable_goes_with_no_other_state(other: str) -> None:
    with pytest.raises(InvalidInput, match=r"^state: must be activatable alone"):
        checks.state_filters(["activatable", other])
