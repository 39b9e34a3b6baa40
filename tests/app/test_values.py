"""Values beyond JSON: what an annotation names is what the handler gets, and what the caller gets back."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from everwork import Everwork, JobContext, State
from everwork.codec.json import decode, encode
from everwork.core.limits import PAYLOAD_BYTES_MAX
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.handler import Arguments
from tests.app.waiting import finished, working


class Colour(Enum):
    """An enumeration of a user's."""

    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    """One of numbers."""

    SMALL = 1
    LARGE = 9


@dataclass(frozen=True)
class Line:
    """A dataclass of a user's."""

    article: UUID
    price: Decimal
    tags: frozenset[str] = field(default_factory=frozenset)


class Socket:
    """What no JSON can hold."""


class Order(BaseModel):
    """A model of a user's, with an alias."""

    id: int
    placed: datetime
    lines: list[Line] = []
    colour: Colour | None = None
    due_in: timedelta = Field(default=timedelta(0), alias="dueIn")


class Strict(BaseModel):
    """A model that takes no text for a date, except from JSON."""

    model_config = ConfigDict(strict=True)

    at: datetime
    kinds: tuple[Size, ...] = ()


class Point(NamedTuple):
    """A tuple of a user's."""

    x: int
    y: Decimal


class Box(TypedDict):
    """A dictionary of a user's."""

    points: list[Point]


uuids = st.uuids()
decimals = st.decimals(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
instants = st.datetimes()  # Naive ones stay naive.
spans = st.timedeltas(min_value=timedelta(days=-9000), max_value=timedelta(days=9000))
lines = st.builds(Line, uuids, decimals, st.frozensets(texts, max_size=3))
points = st.builds(Point, st.integers(-5, 5), decimals)
whole = st.integers(-(2**63), 2**63 - 1)

KINDS: dict[Any, st.SearchStrategy[Any]] = {
    Order: st.builds(
        lambda number, placed, lines, colour, due: Order(
            id=number, placed=placed, lines=lines, colour=colour, dueIn=due
        ),
        whole, instants, st.lists(lines, max_size=2), st.none() | st.sampled_from(Colour), spans,
    ),
    Strict: st.builds(Strict, at=instants, kinds=st.lists(st.sampled_from(Size), max_size=3).map(tuple)),
    Line: lines,
    Point: points,
    Box: st.builds(lambda points: Box(points=points), st.lists(points, max_size=2)),
    list[Line]: st.lists(lines, max_size=2),
    dict[UUID, Line]: st.dictionaries(uuids, lines, max_size=2),
    dict[int, Decimal]: st.dictionaries(whole, decimals, max_size=2),
    Decimal: decimals,
    datetime: instants | instants.map(lambda one: one.replace(tzinfo=UTC)),
    date: st.dates(),
    time: st.times(),
    timedelta: spans,
    UUID: uuids,
    Colour: st.sampled_from(Colour),
    Size: st.sampled_from(Size),
    Path: texts.filter(lambda one: "\0" not in one).map(Path),
    PurePosixPath: texts.filter(lambda one: "\0" not in one).map(PurePosixPath),
    set[int]: st.sets(whole, max_size=4),
    frozenset[Decimal]: st.frozensets(decimals, max_size=4),
    tuple[int, str]: st.tuples(whole, texts),
    tuple[date, ...]: st.lists(st.dates(), max_size=3).map(tuple),
    bytes: texts.map(str.encode),
    Literal["a", 1]: st.sampled_from(["a", 1]),
    int | None: st.none() | whole,
    list[str]: st.lists(texts, max_size=3),
    float: st.floats(allow_nan=False, allow_infinity=False),
}  # fmt: skip


@given(st.sampled_from(list(KINDS)).flatmap(lambda hint: st.tuples(st.just(hint), KINDS[hint])))
def test_what_is_given_is_what_the_handler_gets(kind: tuple[Any, Any]) -> None:
    hint, value = kind
    arguments = Arguments(taking(hint))
    stored = encode("variables", arguments.dump({"value": value}), PAYLOAD_BYTES_MAX)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [got] = arguments.bind(decode(stored)).values()
    assert (got, type(got)) == (value, type(value))


def taking(hint: Any) -> Any:
    """A handler with one annotated argument."""

    async def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    return handler


PLACED = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)
ORDER = Order(
    id=7, placed=PLACED, lines=[Line(UUID(int=5), Decimal("9.90"), frozenset({"new"}))], dueIn=timedelta(days=2)
)


@pytest.mark.every_engine
async def test_models_go_in_and_come_out_on_every_engine(app: Everwork) -> None:
    seen: list[object] = []

    @app.job("order-take")
    async def take(ctx: JobContext, order: Order, paths: set[Path], colour: Colour = Colour.RED) -> dict[str, Order]:
        seen.append((order, paths, colour))
        return {"first": order}

    @app.job("order-price")
    def price(order: Order) -> Decimal:
        return sum((line.price for line in order.lines), Decimal(0))

    async with working(app):
        taken = await take.enqueue(ORDER, {Path("/a"), Path("b")}, colour=Colour.BLUE)
        assert await taken.result() == {"first": ORDER}
        priced = await app.enqueue("order-price", order=ORDER)  # By type, which is known here.
        assert await priced.result() == Decimal("9.90")
        assert await app.result(int(priced)) == "9.90"  # As JSON has it, without the function.
    assert seen == [(ORDER, {Path("/a"), Path("b")}, Colour.BLUE)]
    job = await taken.get()
    assert job.variables["order"]["dueIn"] == "P2D"
    assert job.result["first"]["lines"][0]["price"] == "9.90"


async def test_values_of_a_type_whose_handler_is_elsewhere_are_stored_as_pydantic_writes_them(app: Everwork) -> None:
    job = await (
        await app.enqueue("elsewhere", order=ORDER, at=PLACED, price=Decimal("1.50"), kinds={Size.LARGE})
    ).get()
    assert job.variables["order"]["dueIn"] == "P2D"
    assert (job.variables["at"], job.variables["price"], job.variables["kinds"]) == (
        "2026-11-18T09:30:00+00:00",
        "1.50",
        [9],
    )


async def test_a_value_that_does_not_fit_is_refused_with_the_name_of_its_part(app: Everwork) -> None:
    @app.job("order-take")
    async def take(order: Order, picture: bytes = b"") -> None: ...

    with pytest.raises(InvalidInput, match=r"^order\.placed: Field required$"):
        await take.enqueue({"id": 1})  # type: ignore[arg-type]
    wrong = {"id": 1, "placed": PLACED, "lines": [{"article": "x", "price": 1}]}
    with pytest.raises(InvalidInput, match=r"^order\.lines\[0\]\.article: Input should be a valid UUID.*, not 'x'$"):
        await take.enqueue(wrong)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match=r"^picture: cannot be stored as JSON: .*annotate it with pydantic\.Base64Bytes"
    ):
        await take.enqueue(ORDER, b"\xff\xd8")
    advice = "use a Pydantic model, a dataclass or JSON types, or pass an id"
    for thing in (Socket(), [{"deep": Socket()}]):
        with pytest.raises(
            InvalidInput, match=rf"^thing: must consist of JSON values, not tests\.app\.test_values\.Socket; {advice}$"
        ):
            await app.enqueue("elsewhere", first=1, thing=thing)


async def test_bytes_that_are_no_text_go_as_base64(app: Everwork) -> None:
    @app.job("picture-keep")
    async def keep(picture: Base64Bytes) -> int:
        return len(picture)

    async with working(app):
        assert await (await keep.enqueue(b"/9g=")).result() == 2


async def test_a_model_that_has_changed_fails_the_job_with_the_name_of_the_field(app: Everwork) -> None:
    key = await app.enqueue("order-take", order={"id": 1, "when": "2026-11-18"})

    @app.job("order-take")
    async def take(order: Order) -> None: ...

    async with working(app):
        job = await finished(app, key)
    assert (job.state, job.attempts, job.last_error) == (State.FAILED, 1, "argument order.placed: Field required")


@pytest.mark.parametrize("hint", [OrderedDict[str, object], Any, object, None, int, list[Order]])
async def test_a_result_that_json_can_hold_is_declared(app: Everwork, hint: Any) -> None:
    async def handler() -> Any: ...

    handler.__annotations__["return"] = hint
    assert app.job("give")(handler).type == "give"


async def test_a_result_that_no_json_can_hold_is_refused_at_the_declaration(app: Everwork) -> None:
    async def handler() -> Any: ...

    handler.__annotations__["return"] = Socket
    advice = "; use a Pydantic model, a dataclass or JSON types, or pass an id"
    with pytest.raises(
        BadConfiguration, match=rf"^the result: its annotation cannot be serialized to JSON: .*Socket'>{advice}$"
    ):
        app.job("give")(handler)
    handler.__annotations__ = {"return": None, "thing": Socket}


async def test_a_handler_may_return_what_its_annotation_can_be_made_of(app: Everwork) -> None:
    @app.job("give")
    async def give() -> Order:
        return {"id": "7", "placed": PLACED}  # type: ignore[return-value]

    async with working(app):
        assert await (await give.enqueue()).result() == Order(id=7, placed=PLACED)
