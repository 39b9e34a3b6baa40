"""Fixtures for pytest, available once Everwork is installed. Nothing is imported before a test requests one."""

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
    """The application to test. Override this fixture to return an application, a worker class, or a list of them."""
    pytest.fail(
        "define a fixture everwork_app that returns your application, for example in conftest.py: "
        "`@pytest.fixture def everwork_app(): return app`",
        pytrace=False,
    )


@pytest.fixture
def everwork_stage(request: pytest.FixtureRequest, everwork_app: Any) -> Iterator[Stage]:
    """A `Stage` for the application of `everwork_app`, for `async def` tests."""
    from everwork.testing.rehearsal import rehearse  # noqa: PLC0415 - pytest loads this module at every start

    rehearsal = rehearse(*_as_list(everwork_app))
    with _wrapped(request.node, rehearsal.shutdown) as result:
        stage = rehearsal.begin()
        yield stage
        rehearsal.end(has_passed=result.has_passed)


@pytest.fixture
def everwork_sync_stage(request: pytest.FixtureRequest, everwork_app: Any) -> Iterator[SyncStage]:
    """A `SyncStage` for the application of `everwork_app`, for tests without an event loop."""
    from everwork.testing.rehearsal import rehearse  # noqa: PLC0415 - pytest loads this module at every start

    rehearsal = rehearse(*_as_list(everwork_app))
    with _wrapped(request.node) as result:
        stage = rehearsal.begin_sync()
        yield stage
        rehearsal.end(has_passed=result.has_passed)


class _TestResult:
    """Records whether a test has passed, because pytest does not report it to fixtures."""

    has_passed = False


@contextmanager
def _wrapped(test: Any, finalizer: Callable[[], Awaitable[None]] | None = None) -> Iterator[_TestResult]:
    """Wrap a test to learn its result; `finalizer` is awaited in the test's event loop before the loop is closed."""
    inner, result = test.obj, _TestResult()

    @wraps(inner)
    async def awaited(**arguments: Any) -> None:
        __tracebackhide__ = True
        try:
            await inner(**arguments)
        finally:
            if finalizer is not None:
                await finalizer()
        result.has_passed = True

    @wraps(inner)
    def called(**arguments: Any) -> None:
        __tracebackhide__ = True
        inner(**arguments)
        result.has_passed = True

    test.obj = awaited if iscoroutinefunction(inner) else called
    try:
        yield result
    finally:
        test.obj = inner


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
