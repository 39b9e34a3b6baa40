"""Sample workers for the Compose files: put your own modules into this folder, and name the manager in the command."""

import os

from everwork import (
    AbstractWorker,
    PostgresBackend,
    PostgresBroker,
    Process,
    ProcessGroup,
    ProcessManager,
    RedisBackend,
    RedisBroker,
    SqliteBackend,
    SqliteBroker,
    WorkerSettings,
)

STORE = os.environ["EVERWORK_ENGINE"]
STORES = {
    "sqlite": (SqliteBackend, SqliteBroker),
    "postgresql": (PostgresBackend, PostgresBroker),
    "redis": (RedisBackend, RedisBroker),
}


class Mailer(AbstractWorker):
    """Takes jobs of the type email-send."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="mailer", sources={"email-send"}, execution_timeout=180, concurrency=10)

    async def __call__(self, to: str) -> dict[str, str]:
        return {"sent_to": to}


backend, broker = STORES[STORE.partition(":")[0]]
manager = ProcessManager(
    uuid="shop",
    processes=[ProcessGroup(process=Process(workers=[Mailer]), replicas=2)],
    backend=backend(STORE),
    broker=broker(STORE),
)
