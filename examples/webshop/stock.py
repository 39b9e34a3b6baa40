"""A worker class in separate processes. Run it with: everwork worker webshop.stock"""

from __future__ import annotations

from collections import Counter

from everwork import (
    AbstractWorker,
    PostgresBackend,
    PostgresBroker,
    Process,
    ProcessManager,
    SqliteBackend,
    SqliteBroker,
    WorkerSettings,
)
from webshop.database import URL


class StockKeeper(AbstractWorker):
    """Counts shipped items; each process sets up its resources once."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="stock-keeper", sources={"stock-take"}, concurrency=5)

    async def startup(self) -> None:
        self.taken: Counter[str] = Counter()

    async def __call__(self, article: str, pieces: int = 1) -> int:
        self.taken[article] += pieces
        return self.taken[article]


IS_FILE = URL.startswith("sqlite")

manager = ProcessManager(
    uuid="shop-stock",
    processes=[Process(workers=[StockKeeper])],
    backend=SqliteBackend(URL) if IS_FILE else PostgresBackend(URL),
    broker=SqliteBroker(URL) if IS_FILE else PostgresBroker(URL),
)
