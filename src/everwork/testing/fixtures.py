"""Fixtures for pytest, there as soon as Everwork is installed. Nothing is loaded before a test asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from everwork.testing.stage import Stage
    from everwork.testing.sync_stage import SyncStage


@pytest.fixture
def everwork_app() -> Any:
    """What is rehearsed. Define a fixture of this name: it returns an application, a worker class, or a list."""
    pytest.fail(
        "define a fixture everwork_app that returns your application, for example in conftest.py: "
        "`@pytest.fixture def everwork_app(): return app`",
        pytrace=False,
    )


@pytest.fixture
def everwork_stage(everwork_app: Any) -> Iterator[Stage]:
    """A stage with the application of `everwork_app` on it, for `async def` tests."""
    from everwork.testing.rehearsal import rehearse  # noqa: PLC0415 - pytest loads this module at every start

    with rehearse(*_listed(everwork_app)).awaited() as stage:
        yield stage


@pytest.fixture
def everwork_sync_stage(everwork_app: Any) -> Iterator[SyncStage]:
    """The same for tests without an event loop."""
    from everwork.testing.rehearsal import rehearse  # noqa: PLC0415 - pytest loads this module at every start

    with rehearse(*_listed(everwork_app)) as stage:
        yield stage


def _listed(what: Any) -> list[Any]:
    return list(what) if isinstance(what, list | tuple) else [what]
