"""After every test of the contract, whatever it did, the counts must add up (V10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.observe import assert_counts_add_up

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from everwork.engines.contract import Engine


@pytest.fixture(autouse=True)
async def _counts_add_up_at_the_end(engine: Engine) -> AsyncIterator[None]:
    yield
    await assert_counts_add_up(engine)
