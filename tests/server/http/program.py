"""A REST server as a process of its own: prints its port, and stops when its standard input ends."""

from __future__ import annotations

import asyncio
import sys

from tests.server.http.serving import serving

POLL_SECONDS = 0.05


async def main(url: str) -> None:
    """Serve until told to stop."""
    async with serving(url, long_poll_seconds=POLL_SECONDS) as rest:
        print(rest.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
