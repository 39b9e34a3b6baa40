"""A producer whose store goes silent in the middle of a delivery: only one call waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Stamp
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.service.store_access import StoreAccess
from everwork.spool.outbox import Outbox
from tests.spool.kit import DEADLINE_S, deliver, kept, numbered, offline_in, texts, variables

PATIENCE_S = 3.0


class Silent(StoreAccess):
    """A store that answers one create, when it may, and then never again."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "test")
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.is_silent = asyncio.Event()
        self._calls = 0

    async def create_stamped(self, jobs: Sequence[NewJob], stamp: Stamp) -> list[Created]:
        """Create the first jobs only."""
        self._calls += 1
        if self._calls > 1:
            self.is_silent.set()
            await asyncio.Event().wait()
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().create_stamped(jobs, stamp)


async def test_after_one_call_has_waited_in_vain_later_ones_are_kept_at_once(tmp_path: Path) -> None:
    offline = offline_in(tmp_path, patience=PATIENCE_S)
    kept(offline, numbered(1, 1))
    engine = open_engine(offline.store)
    store = Silent(engine)
    outbox = Outbox(offline, store)
    async with asyncio.timeout(DEADLINE_S):
        await outbox.open()
        await store.is_asked.wait()
        await outbox.create(numbered(2, 2))
        store.may_answer.set()
        await store.is_silent.wait()  # The last entry is on its way: new jobs wait for that.
        await outbox.create(numbered(3, 3))
        async with asyncio.timeout(PATIENCE_S * 0.9):
            await outbox.create(numbered(4, 4))
        await outbox.close()
        await engine.close()
    await deliver(offline)
    assert await variables(offline) == texts(numbered(1, 4))
