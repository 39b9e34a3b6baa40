"""A dashboard on SQLite, and somebody who may do everything there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.server.http.serving import Rest
from tests.server.http.ui.visiting import Visitor, visiting


@pytest.fixture
async def visitor(local: Rest) -> AsyncIterator[Visitor]:
    """Logged in with the root key."""
    async with visiting(local) as somebody:
        yield somebody
