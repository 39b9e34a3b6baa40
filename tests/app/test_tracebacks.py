"""What a handler raises is kept with its attempt: where, and what led to it; bounded, without values of variables."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from everwork import Everwork, JobContext, RetryPolicy
from everwork.core.limits import TRACEBACK_CHARS_MAX
from everwork.exceptions import Fail, Reject, Retry
from everwork.runtime import stacks
from everwork.runtime.stacks import FRAMES_MAX, traceback_of
from tests.app.waiting import run_one, trace_of

SECRET = "s3cret-of-a-variable"


def text_of(call: Any, *arguments: Any) -> str:
    """The traceback of what a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any
        call(*arguments)
    text = traceback_of(caught.value)
    assert text is not None
    return text


def refuse(password: str) -> None:
    """Raise, beside a value that must stay here."""
    raise ValueError("refused") if password else TypeError


# Handlers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_traceback_of_a_handler_begins_with_its_own_code(app: Everwork, kind: str) -> None:
    async def in_loop(ctx: JobContext, password: str) -> None:
        refuse(password)

    def in_thread(ctx: JobContext, password: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        refuse(password)

    app.job("send", retry=None)(in_loop if kind == "async" else in_thread)
    job = await run_one(app, "send", password=SECRET)
    lines = await trace_of(app, job.key)
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.rpartition(", in ")[2] for line in lines if line.startswith("  File")] == [
        "in_loop" if kind == "async" else "in_thread",
        "refuse",
    ]
    assert lines[-1] == "ValueError: refused"
    assert SECRET not in "\n".join(lines)
    assert job.last_error == "ValueError: refused"


async def test_a_job_that_succeeds_has_no_traceback_and_none_is_made(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_lines", None)

    @app.job("send")
    async def send() -> None: ...

    job = await run_one(app, "send")
    assert await trace_of(app, job.key) == [""]


@pytest.mark.parametrize("signal", [Fail, Retry, Reject])
async def test_a_signal_has_the_traceback_of_the_error_that_led_to_it(app: Everwork, signal: type[Exception]) -> None:
    @app.job("send", retry=RetryPolicy(max_attempts=1))
    async def send() -> None:
        try:
            refuse("x")
        except ValueError as error:
            raise signal("no") from error

    job = await run_one(app, "send")
    lines = await trace_of(app, job.key)
    assert "ValueError: refused" in lines
    assert lines[-1] == f"everwork.exceptions.{signal.__name__}: no"


@pytest.mark.parametrize(("signal", "is_kept"), [(Fail, True), (Retry, False), (Reject, False)])
async def test_a_retry_or_reject_on_purpose_has_none(app: Everwork, signal: type[Exception], is_kept: bool) -> None:
    @app.job("send", retry=RetryPolicy(max_attempts=1))
    async def send() -> None:
        raise signal("no")

    job = await run_one(app, "send")
    assert ((await app.history(job.key))[0].traceback is not None) == is_kept


# Texts ----------------------------------------------------------------------------------------------


def test_an_endless_recursion_is_cut_to_its_innermost_frames() -> None:
    def dig(depth: int) -> None:
        if not depth:
            refuse("x")
        dig(depth - 1)

    lines = text_of(dig, 500).split("\n")
    assert lines[:2] == ["Traceback (most recent call last):", f"  [{503 - FRAMES_MAX} frames left out]"]
    assert lines[-3].endswith(", in refuse")
    assert "  [Previous line repeated 25 more times]" in lines


def test_chained_exceptions_are_kept_oldest_first() -> None:
    def handle() -> None:
        try:
            refuse("x")
        except ValueError as error:
            try:
                raise KeyError("k") from error
            except KeyError:
                raise OSError("at last")  # noqa: B904 - as users write it

    text = text_of(handle)
    first, second, third = text.split("\n\n")[0], text.split("\n\n")[2], text.split("\n\n")[4]
    assert (first.split("\n")[-1], second.split("\n")[-1]) == ("ValueError: refused", "KeyError: 'k'")
    assert third.split("\n")[-1] == "OSError: at last"
    assert "The above exception was the direct cause of the following exception:" in text
    assert "During handling of the above exception, another exception occurred:" in text


def test_an_exception_raised_from_none_stands_alone() -> None:
    def handle() -> None:
        try:
            refuse("x")
        except ValueError:
            raise OSError("alone") from None

    assert "refused" not in text_of(handle)


def test_a_ring_of_causes_and_a_long_chain_end() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert str(traceback_of(one)).split("\n")[::4] == ["ValueError: two", "ValueError: one"]
    chain = ValueError("0")
    for number in range(1, 10_000):
        chain, chain.__context__ = ValueError(str(number)), chain
    lines = str(traceback_of(chain)).split("\n")
    assert lines[:2] == ["[only the last 8 exceptions are shown]", "ValueError: 9992"]
    assert lines[-1] == "ValueError: 9999"


async def test_the_errors_of_a_task_group_are_all_shown_up_to_a_number() -> None:
    async def part(number: int) -> None:
        refuse(f"{SECRET}{number}")

    async def parts() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(7):
                group.create_task(part(number))

    with pytest.raises(ExceptionGroup) as caught:
        await parts()
    text = str(traceback_of(caught.value))
    assert text.count("  | ValueError: refused") == 5
    assert "\n  +---------------- 1 of 7\n  | Traceback (most recent call last):\n" in text
    assert text.endswith("  +---------------- [2 exceptions left out]")
    assert SECRET not in text


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 1_000_000),
        ValueError("line\n" * 100_000),
        ExceptionGroup("g" * 5_000, [ValueError("y" * 100_000)] * 100),
        ValueError("\0\ud800"),
    ],
    ids=["long", "lines", "group", "odd"],
)
def test_whatever_is_raised_the_text_is_short_and_storable(error: Exception) -> None:
    text = traceback_of(error)
    assert text is not None
    assert len(text) <= TRACEBACK_CHARS_MAX
    assert "\0" not in text.encode().decode()


def test_a_long_message_leaves_room_for_the_frames() -> None:
    def say(message: str) -> None:
        raise ValueError(message)

    text = text_of(say, "x" * 100_000)
    assert ", in say\n" in text
    assert text.endswith("x [7,192 characters left out]")


def test_notes_are_kept_and_nothing_that_an_exception_does_gets_in_the_way() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    class BrokenError(Exception):
        def __getattribute__(self, name: str) -> Any:
            if name == "__notes__":
                raise RuntimeError
            return super().__getattribute__(name)

    odd = OddError()
    odd.add_note("while sending")
    name = "test_notes_are_kept_and_nothing_that_an_exception_does_gets_in_the_way.<locals>.OddError"
    said = f"{__name__}.{name}: a OddError that cannot be shown\nwhile sending"
    assert (traceback_of(odd), traceback_of(BrokenError())) == (said, None)
