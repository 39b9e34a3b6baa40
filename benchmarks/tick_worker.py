"""The worker process of the latency part: records the delay of each job, and prints all delays when stopped.

python -m benchmarks.tick_worker URL
"""

from __future__ import annotations

import json
import sys
import time

from everwork import Everwork

TICK = "tick"


def main() -> None:
    """Run until SIGTERM."""
    app = Everwork(sys.argv[1])
    late_ns: list[int] = []

    @app.job(TICK, concurrency=10)
    async def tick(sent_ns: int) -> None:
        # On Linux, all processes of a machine share one monotonic clock.
        late_ns.append(time.monotonic_ns() - sent_ns)

    app.run()
    print(json.dumps(late_ns))


if __name__ == "__main__":
    main()
