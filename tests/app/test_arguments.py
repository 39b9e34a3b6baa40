"""Arguments of a handler: refused by name when enqueued, coerced by annotation when run, or a permanent failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from everwork import Everwork, Job, JobContext, State
from everwork.core.queries import JobFilter
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.executor import Executor
from everwork.runtime.handler import Arguments
from tests.app.handlers import a_handler
from tests.app.waiting import finished, run_one, working


class Address(BaseModel):
    """A model of a user's."""

    street: str
    number: int = 1


@dataclass
class Parcel:
    """A dataclass of a user's."""

    weight: float
    label: str = ""


class Colour(Enum):
    """An enumeration of a user's."""

    RED = "red"


class Opaque:
    """A class that no JSON value can become."""


async def received(app: Everwork, handler: Callable[..., Any], **variables: Any) -> list[Any]:
    """What the handler was called with, after one job that must have completed."""
    app.job("receive")(handler)
    job = await run_one(app, "receive", **variables)
    assert job.state is State.COMPLETED, job.last_error
    return seen


seen: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


async def test_an_argument_that_the_handler_does_not_have_is_refused(app: Everwork) -> None:
    @app.job("email-send")
    async def send(to: str, subject: str = "") -> None: ...

    with pytest.raises(InvalidInput, match=r"^cc: the handler has no such argument; it takes 'to', 'subject'$"):
        await send.enqueue(to="a", cc="b")  # type: ignore[call-arg]
    assert (await app._host.call(lambda service: service.find(JobFilter(), 1))).jobs == []


async def test_a_missing_argument_is_refused(app: Everwork) -> None:
    @app.job("email-send")
    async def send(to: str, subject: str = "") -> None: ...

    with pytest.raises(InvalidInput, match=r"^to: the handler needs this argument$"):
        await app.enqueue("email-send", subject="hello")
    with pytest.raises(InvalidInput, match=r"^jobs\[0\]\.to: the handler needs this argument$"):
        await app.enqueue_many([("email-send", {})])


async def test_a_handler_with_keyword_arguments_takes_any_name(app: Everwork) -> None:
    async def handler(to: str, **rest: Any) -> None:
        seen.append((to, rest))

    assert await received(app, handler, to="a", cc=["b"]) == [("a", {"cc": ["b"]})]


async def test_the_context_is_not_an_argument_that_callers_give(app: Everwork) -> None:
    @app.job("email-send")
    async def send(ctx: JobContext) -> None: ...

    with pytest.raises(InvalidInput, match=r"^ctx: the handler has no such argument; it takes none$"):
        await send.enqueue(ctx=1)  # type: ignore[call-arg]


async def test_defaults_fill_what_was_not_given(app: Everwork) -> None:
    async def handler(to: str, copies: int = 3) -> None:
        seen.append((to, copies))

    assert await received(app, handler, to="a") == [("a", 3)]


async def test_text_becomes_a_datetime(app: Everwork) -> None:
    async def handler(at: datetime, day: date) -> None:
        seen.extend([at, day])

    at = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    assert await received(app, handler, at=at, day=date(2030, 1, 2)) == [at, date(2030, 1, 2)]


async def test_an_object_becomes_a_pydantic_model(app: Everwork) -> None:
    async def handler(to: Address) -> None:
        seen.append(to)

    assert await received(app, handler, to={"street": "Elm"}) == [Address(street="Elm", number=1)]


async def test_an_object_becomes_a_dataclass(app: Everwork) -> None:
    async def handler(parcel: Parcel) -> None:
        seen.append(parcel)

    assert await received(app, handler, parcel={"weight": 2}) == [Parcel(2.0)]


async def test_a_list_of_models_is_made_of_models(app: Everwork) -> None:
    async def handler(to: list[Address]) -> None:
        seen.append(to)

    assert await received(app, handler, to=[{"street": "Elm"}]) == [[Address(street="Elm")]]


async def test_text_becomes_an_enumeration_and_a_uuid(app: Everwork) -> None:
    async def handler(colour: Colour, id: UUID) -> None:
        seen.extend([colour, id])

    assert await received(app, handler, colour="red", id=UUID(int=7)) == [Colour.RED, UUID(int=7)]


@pytest.mark.parametrize("value", [None, 5])
async def test_an_optional_argument_may_be_null(app: Everwork, value: int | None) -> None:
    async def handler(copies: int | None) -> None:
        seen.append(copies)

    assert await received(app, handler, copies=value) == [value]


async def test_a_whole_number_meets_a_float(app: Everwork) -> None:
    async def handler(weight: float) -> None:
        seen.append(weight)

    assert await received(app, handler, weight=3) == [3.0]


async def test_arguments_without_annotation_come_as_they_are(app: Everwork) -> None:
    def handler(a, b: Any, c: object) -> None:  # type: ignore[no-untyped-def]
        seen.append((a, b, c))

    assert await received(app, handler, a=1, b="x", c=[None]) == [(1, "x", [None])]


MISMATCHES: list[tuple[Any, Any]] = [
    (int, "many"),
    (int, 1.5),
    (str, 5),
    (bool, "perhaps"),
    (float, "heavy"),
    (datetime, "tomorrow"),
    (Address, {"number": 1}),
    (Parcel, {}),
    (Colour, "green"),
    (list[int], [1, "x"]),
    (int | None, "x"),
    (dict, []),
    (None, 1),
]


@pytest.mark.parametrize(("hint", "value"), MISMATCHES)
async def test_a_value_that_does_not_fit_is_refused_at_enqueue_and_fails_a_job_for_good_by_name(
    app: Everwork, hint: Any, value: Any
) -> None:
    async def handler(first: int, thing: Any) -> None: ...

    handler.__annotations__["thing"] = hint
    key = await app.enqueue("receive", first=1, thing=value)  # Before the handler is known.
    app.job("receive")(handler)
    with pytest.raises(InvalidInput, match=r"^thing[^:]*: "):
        await app.enqueue("receive", first=1, thing=value)
    job = await finished_by_workers(app, key)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert job.last_error is not None
    assert job.last_error.startswith("argument thing"), job.last_error


async def test_a_job_from_elsewhere_without_a_needed_argument_is_a_permanent_failure(app: Everwork) -> None:
    key = await app.enqueue("email-send", subject="created before the handler was declared")

    @app.job("email-send")
    async def send(to: str, subject: str) -> None: ...

    job = await finished_by_workers(app, key)
    assert (job.state, job.attempts, job.last_error) == (
        State.FAILED,
        1,
        "argument to: the handler needs this argument",
    )


async def test_a_job_from_elsewhere_with_an_unknown_argument_is_a_permanent_failure(app: Everwork) -> None:
    key = await app.enqueue("email-send", cc="b")

    @app.job("email-send")
    async def send() -> None: ...

    job = await finished_by_workers(app, key)
    assert (job.state, job.attempts) == (State.FAILED, 1)
    assert job.last_error == "argument cc: the handler has no such argument; it takes none"


async def test_an_annotation_that_no_value_can_meet_is_told_at_the_declaration_or_by_the_job(app: Everwork) -> None:
    async def handler(thing: Opaque) -> None: ...

    try:
        app.job("receive")(handler)
    except BadConfiguration as error:
        assert "thing" in str(error)  # noqa: PT017 - either way of telling is right
        return
    job = await run_one(app, "receive", thing=1)
    assert job.state is State.FAILED
    assert "thing" in str(job.last_error)


async def finished_by_workers(app: Everwork, key: int) -> Job:
    """The job as it rests after workers have run for as long as it takes."""
    async with working(app):
        return await finished(app, key)


class Taker:
    """A handler that is a method, and takes what it gets."""

    def take(self, ctx: JobContext, **rest: int) -> None:
        """Take it."""


@pytest.mark.parametrize("name", ["self", "ctx"])
def test_a_name_that_the_handler_needs_for_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{name}: is reserved"):
        Arguments(Taker().take).bind({name: 1})


def test_further_keyword_arguments_are_coerced_by_their_annotation() -> None:
    arguments = Arguments(Taker().take)
    assert arguments.bind({"a": "2", "b": 3}) == {"a": 2, "b": 3}
    with pytest.raises(InvalidInput, match=r"^c: "):
        arguments.bind({"c": "many"})


async def test_a_handler_with_arguments_is_never_called_with_the_job_instead() -> None:
    executor = Executor(lambda _: None, None)
    with pytest.raises(BadConfiguration, match="worker 'mail': a handler with arguments needs a store"):
        executor.add(a_handler(lambda to: to, "mail"))
