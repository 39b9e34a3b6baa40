"""Fixtures for pytest, there as soon as Everwork is installed. Nothing is loaded before a test asks for one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everwork.testing.stage import Stage, SyncStage


@pytest.fixture
def everwork_app() -> Any:
    """What is rehearsed. Define a fixture of this name: it returns an application, a worker class, or a list."""
    pytest.fail(
        "define a fixture everwork_app that returns your application, for example in conftest.py: "
        "`@pytest.fixture def everwork_app(): return app`",
        pytrace=False,
    )


@pytest.fixture
def everwork_stage(request: pytest.FixtureRequest, everwork_app: Any) -> Iterator[Stage]:
    """A stage with the application of `everwork_app` on it, for `async def` tests."""
    from everwork.testing.rehearsal import rehearse  # noqa: PLC0415 - pytest loads this module at every start

    rehearsal = rehearse(*_listed(everwork_app))
    with _around(request.node, rehearsal.shutdown) as course:
        stage = rehearsal.begin()
        yield stage
        rehearsal.end(has_passed=course.has_passed)


@pytest.fixture
def everwork_sync_stage(request: pytest.FixtureRequest, everwork_app: Any) -> Iterator[SyncStage]:
    """The same for tests without an event loop."""
    from everwork.testing.rehearsal import rehearse  # noqa: PLC0415 - pytest loads this module at every start

    rehearsal = rehearse(*_listed(everwork_app))
    with _around(request.node) as course:
        stage = rehearsal.begin_sync()
        yield stage
        rehearsal.end(has_passed=course.has_passed)


class _Course:
    """How a test went: no fixture is told."""

    has_passed = False


@contextmanager
def _around(test: Any, last: Callable[[], Awaitable[None]] | None = None) -> Iterator[_Course]:
    """Stand around a test and see how it goes; `last` is awaited in its event loop, which is gone afterwards."""
    inner, course = test.obj, _Course()

    @wraps(inner)
    async def awaited(**arguments: Any) -> None:
        __tracebackhide__ = True
        try:
            await inner(**arguments)
        finally:
            if last is not None:
                await last()
        course.has_passed = True

    @wraps(inner)
    def called(**arguments: Any) -> None:
        __tracebackhide__ = True
        inner(**arguments)
        course.has_passed = True

    test.obj = awaited if iscoroutinefunction(inner) else called
    try:
        yield course
    finally:
        test.obj = inner


def _listed(what: Any) -> list[Any]:
    return list(what) if isinstance(what, list | tuple) else [what]
