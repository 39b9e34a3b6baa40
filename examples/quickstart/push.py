"""Publishes one event to example-stream, from any program: python push.py "a message" """

import asyncio
import os
import sys

from everwork import Event, RedisBroker

STORE = os.environ.get("EVERWORK_ENGINE", "redis://localhost:6379/0")


async def main(message: str) -> None:
    """Push the event, and print the key of its job."""
    async with RedisBroker(STORE) as broker:
        key = await broker.push(Event(source="example-stream", kwargs={"message": message, "x": 7}))
    print(f"job {key}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "Hello from push!"))
