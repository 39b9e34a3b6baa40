"""A worker class with a stream and a schedule, run by a manager on Redis. Start it with: python main.py"""

import asyncio
import os
from typing import Any

from everwork import (
    AbstractWorker,
    Interval,
    Process,
    ProcessManager,
    RedisBackend,
    RedisBroker,
    Trigger,
    WorkerSettings,
)

STORE = os.environ.get("EVERWORK_ENGINE", "redis://localhost:6379/0")


class ExampleWorker(AbstractWorker):
    """Handles every event of example-stream, and is called by its own trigger every 30 seconds."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(
            title="example-worker",
            description="Example worker",
            execution_timeout=120,
            sources={"example-stream"},
            triggers=[
                Trigger(
                    title="periodic-task",
                    description="Runs every 30 seconds",
                    schedule=Interval(seconds=30),
                    kwargs={"message": "Hello from trigger!"},
                )
            ],
        )

    async def __call__(self, x: int = 0, **kwargs: Any) -> None:
        print(f"Processing: {kwargs.get('message', 'No message')} (x={x})", flush=True)
        await asyncio.sleep(1)  # your own work instead


async def main() -> None:
    """Run until Ctrl-C or SIGTERM; running jobs finish."""
    manager = ProcessManager(
        uuid="unique-manager-uuid",
        processes=[Process(workers=[ExampleWorker])],
        backend=RedisBackend(STORE),
        broker=RedisBroker(STORE),
    )
    await manager.run()


if __name__ == "__main__":  # worker processes import this file again
    asyncio.run(main())
