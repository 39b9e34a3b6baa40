"""Values that would change on their way through JSON are refused; handlers of odd kinds run, or are refused."""

from __future__ import annotations

import asyncio
import base64
import copy
import gc
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from functools import partial, wraps
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AliasChoices, Base64Bytes, BaseModel, Field, SecretStr, field_serializer, field_validator
from typing_extensions import TypeAliasType

from everwork import Depends, Everwork, JobContext
from everwork.codec.json import encode
from everwork.codec.values import Values
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.runtime.middleware import Call, Middleware, Proceed
from everwork.runtime.threads import HandlerThreads
from everwork.testing import rehearse
from tests.app.waiting import DEADLINE_S, working


class Login(BaseModel):
    """A model with a secret."""

    password: SecretStr


class Revealed(Login):
    """A model that writes its secret."""

    @field_serializer("password")
    def written(self, password: SecretStr) -> str:
        """The secret itself."""
        return password.get_secret_value()


class Account(BaseModel):
    """A model that changes what it reads each time."""

    password: str

    @field_validator("password")
    @classmethod
    def hashed(cls, password: str) -> str:
        """Stands for a hash."""
        return f"#{password}"


class Renamed(BaseModel):
    """A field that is written by another name than it is read by."""

    size: int = Field(serialization_alias="sizeOut")


class Unreadable(BaseModel):
    """A field that is never written by a name that it is read by."""

    size: int = Field(validation_alias=AliasChoices("a", "b"))


class Animal(BaseModel):
    """A base class."""

    name: str


class Dog(Animal):
    """With one more field."""

    tricks: int


@dataclass
class Shape:
    """A base class without pydantic."""

    edges: int


@dataclass
class Named(Shape):
    """With one more field."""

    title: str


class Note(BaseModel):
    """A field that texts and dates fit, and one that anything fits."""

    about: date | str = ""
    more: dict[str, Any] = {}


class Pair(Enum):
    """Values that JSON has as lists."""

    ONE = (1, 2)


class Number(Enum):
    """Values that are the same text as keys."""

    NUMBER = 1
    TEXT = "1"


DAY = date(2026, 11, 18)
SECRET = SecretStr("hunter2")


@pytest.mark.parametrize(
    ("hint", "value", "problem"),
    [
        (SecretStr, SECRET, r"^x: a SecretStr would be stored as asterisks"),
        (list[Login], [Login(password=SECRET)], r"^x\[0\]\.password: a SecretStr would be stored as asterisks"),
        (str, SECRET, r"^x: Input should be a valid string"),
        (str, DAY, r"^x: Input should be a valid string"),
        (dict[str, int], Animal(name="x"), r"^x: Input should be a valid dictionary"),
        (Unreadable, Unreadable(a=1), r"^x\.a: cannot be read back from JSON: Field required"),  # type: ignore[call-arg]
        (
            Animal,
            Dog(name="rex", tricks=2),
            r"^x: must not be a Dog: the handler would receive a Animal without tricks",
        ),
        (list[Shape], [Named(4, "box")], r"^x\[0\]: must not be a Named: .* without title"),
        (str | UUID, UUID(int=1), r"^x: is ambiguous in JSON: UUID would be read as str"),
        (date | datetime, datetime(2026, 11, 18), r"^x: is ambiguous in JSON: datetime would be read as date"),  # noqa: DTZ001
        (list[date | str], ["x", DAY], r"^x\[1\]: is ambiguous in JSON: date would be read as str"),
        (dict[str, tuple[UUID | str]], {"a": (UUID(int=1),)}, r"^x\.a\[0\]: is ambiguous in JSON: UUID would"),
        (TypeAliasType("Day", date | str), DAY, r"^x: is ambiguous in JSON: date would be read as str"),
        (list[Literal["any"] | str | UUID], [UUID(int=1)], r"^x\[0\]: is ambiguous in JSON: UUID would be read as str"),
        (list[Annotated[str | UUID, "an id"]], [UUID(int=1)], r"^x\[0\]: is ambiguous in JSON: UUID would be read as"),
        (Note, Note(about=DAY), r"^x\.about: is ambiguous in JSON: date would be read as str"),
        (dict[int | str, int], {1: 2}, r"^x: has keys that change in JSON, such as 1"),
        (dict[str | None, int], {None: 2}, r"^x: has keys that change in JSON, such as None"),
        (Pair, Pair.ONE, r"^x: cannot be read back from JSON"),
        (dict[tuple[int, int], int], {(1, 2): 3}, r"^x\..*: cannot be read back from JSON"),
        (dict[Number, int], {Number.NUMBER: 1, Number.TEXT: 2}, r"^x: has keys that become the same string in JSON"),
        (Base64Bytes, b"\xff\xd8", r"^x: must be base64"),
        (SecretStr | str, SECRET, r"^x: a SecretStr would be stored as asterisks"),
        (Account, {"password": "x"}, r"^x: would be changed a second time by its validators"),
    ],
)
def test_a_value_that_a_worker_would_read_as_another_is_refused(hint: Any, value: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Values("x", hint).dump("x", value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Renamed, Renamed(size=1)),
        (Revealed, Revealed(password=SECRET)),
        (Animal | Dog, Dog(name="rex", tricks=2)),
        (dict[Number, Pair | None], {Number.TEXT: None}),
        (tuple[Shape, ...], (Shape(3), Shape(4))),
    ],
)
def test_a_value_that_can_be_read_again_is_the_same(hint: Any, value: object) -> None:
    values = Values("x", hint)
    assert values.load("x", values.dump("x", value)) == value


@pytest.mark.parametrize("value", [SECRET, {"a": [SECRET]}, Login(password=SECRET), {"a": Login(password=SECRET)}])
def test_a_secret_without_annotation_is_refused_too(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^x: .*a SecretStr would be stored as asterisks"):
        encode("x", value, 1_000)
    assert encode("x", Revealed(password=SECRET), 1_000) == '{"password":"hunter2"}'


def test_a_result_may_be_more_than_its_annotation() -> None:
    dog = Dog(name="rex", tricks=2)
    assert Values("result", Animal).dump("result", dog, may_narrow=True) == {"name": "rex"}
    with pytest.raises(InvalidInput, match=r"^result\.password: a SecretStr would be stored as asterisks"):
        Values("result", Login).dump("result", Login(password=SECRET), may_narrow=True)


def test_values_that_are_annotated_as_anything_are_as_json_has_them() -> None:
    note = Values("x", Note).dump("x", Note(more={"day": DAY, "all": [DAY]}))
    assert note["more"] == {"day": "2026-11-18", "all": ["2026-11-18"]}
    assert Values("x", tuple[Any, ...]).dump("x", (DAY,)) == ["2026-11-18"]
    anything = TypeAliasType("anything", list[Any])
    assert Values("x", anything).dump("x", [DAY]) == ["2026-11-18"]


def test_base64_of_bytes_is_stored_as_it_is() -> None:
    text = base64.b64encode(b"\xff\xd8")
    assert Values("x", Base64Bytes).dump("x", text) == text.decode()


# Handlers -----------------------------------------------------------------------------------------------


def plain_decorator(function: Callable[..., Coroutine[Any, Any, int]]) -> Callable[..., Any]:
    """As users write them: a plain function that returns the coroutine of an async one."""

    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


class Adder:
    """An object that can be called."""

    async def __call__(self, x: int, y: int = 1) -> int:
        """Add."""
        return x + y


async def test_async_functions_below_plain_decorators_run(app: Everwork) -> None:
    ran = []

    async def emit(ctx: JobContext, x: int) -> int:
        ran.append(ctx.attempt)
        return x + 1

    async def depend(x: int, one: int = Depends(lambda: 1)) -> int:
        return x + one

    class Plus(Middleware):
        async def __call__(self, call: Call, proceed: Proceed) -> Any:
            return await proceed(call) + 1

    emitting = app.job("emit")(plain_decorator(emit))
    depending = app.job("depend")(plain_decorator(depend))
    around = app.job("around", middleware=[Plus()])(plain_decorator(emit))
    async with working(app):
        results = [await (await one.enqueue(x=1)).result() for one in (emitting, depending, around)]
    assert (results, ran) == ([2, 2, 3], [1, 1])


async def test_objects_and_partials_are_handlers_with_checked_arguments(app: Everwork) -> None:
    handlers: list[Any] = [app.job("object")(Adder()), app.job("partial")(partial(Adder().__call__, y=5))]
    async with working(app):
        assert [await (await one.enqueue(x=1)).result() for one in handlers] == [2, 6]
    with pytest.raises(InvalidInput, match=r"^x: Input should be a valid integer"):
        await handlers[0].enqueue(x="one")


def test_generators_and_classes_are_refused_as_handlers(app: Everwork) -> None:
    async def pages() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(BadConfiguration, match=r"^'pages' is a generator: a handler returns its result"):
        app.job("pages")(pages)
    with pytest.raises(BadConfiguration, match=r"^'pages' is a generator"):
        app.job("pages")(partial(pages))
    with pytest.raises(BadConfiguration, match=r"must decorate a function, not class 'Adder'$"):
        app.job("adder")(Adder)


async def test_an_argument_may_be_called_self(app: Everwork) -> None:
    @app.job("any")
    def take(**given: int) -> None: ...

    handle = await take.enqueue(self=1)
    assert (await handle.get()).variables == {"self": 1}


async def test_a_handle_is_copied_as_itself_and_pickled_as_its_key(app: Everwork) -> None:
    handle = await app.enqueue("elsewhere")
    assert copy.copy(handle) is handle
    assert copy.deepcopy([handle])[0] is handle
    kind, [key] = handle.__reduce__()
    assert (kind, key, type(key)) == (int, int(handle), int)


async def test_a_stage_in_an_event_loop_is_not_reported_as_blocking(
    app: Everwork, caplog: pytest.LogCaptureFixture
) -> None:
    async with rehearse(app):
        pass
    assert [record for record in caplog.records if "event loop" in record.message] == []


async def test_a_plain_handler_that_raises_after_its_time_leaves_no_unseen_error() -> None:
    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    threads, go = HandlerThreads(), threading.Event()

    at_work: list[threading.Thread] = []

    def late() -> None:
        at_work.append(threading.current_thread())
        go.wait()
        raise ValueError("late")

    call = threads.run(late)
    waiting = asyncio.ensure_future(asyncio.shield(call))
    await asyncio.sleep(0)
    waiting.cancel()
    go.set()
    await asyncio.wait([call, waiting])
    threads.close()
    await asyncio.to_thread(at_work[0].join)  # Its last call is kept until then.
    del call, waiting
    gc.collect()
    assert unseen == []


async def test_an_exception_that_denies_its_class_does_not_block_its_runner() -> None:
    class Odd(Exception):
        @property
        def __class__(self) -> Any:
            raise RuntimeError("no class")

        @__class__.setter
        def __class__(self, _: Any) -> None: ...

    def odd() -> None:
        raise Odd

    threads = HandlerThreads()
    call = threads.run(odd)
    await asyncio.wait([call], timeout=DEADLINE_S)
    threads.close()
    assert type(call.exception()) is Odd
