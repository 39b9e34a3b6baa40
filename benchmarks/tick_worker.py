"""The worker process of the latency part: notes how late each job starts, prints it all when it is stopped.

python -m benchmarks.tick_worker URL
"""

from __future__ import annotations

import json
import sys
import time

from everwork import Everwork

TICK = "tick"


def main() -> None:
    """Work until SIGTERM."""
    app = Everwork(sys.argv[1])
    late_ns: list[int] = []

    @app.job(TICK, concurrency=10)
    async def tick(sent_ns: int) -> None:
        # The monotonic clock of Linux is one for all processes of a machine.
        late_ns.append(time.monotonic_ns() - sent_ns)

    app.run()
    print(json.dumps(late_ns))


if __name__ == "__main__":
    main()
