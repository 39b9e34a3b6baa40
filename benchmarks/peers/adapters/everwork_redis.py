"""Everwork on redis: the public API, for the peers' harness."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.peers.adapters._door import Door, make_store, work

ENGINE = "redis"
VENV = "everwork"
DIST = "everwork"
PACKAGES = ["-e", ".[all]"]
N = 100_000
BULK = "api"
CONFIG = "async handler, concurrency=500, one connection for work; finished jobs, counts and history are kept"
WORKLOADS = ["W1", "W2", "W3"]

URL = os.environ["BENCH_REDIS_URL"]


async def setup() -> None:
    await make_store(URL)


class Producer(Door):
    def __init__(self) -> None:
        super().__init__(URL)


def worker() -> None:
    work(URL)
