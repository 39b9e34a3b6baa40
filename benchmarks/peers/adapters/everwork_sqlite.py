"""Everwork on sqlite: the public API, for the peers' harness."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.peers.adapters._door import Door, make_store, work

ENGINE = "sqlite"
VENV = "everwork"
DIST = "everwork"
PACKAGES = ["-e", ".[all]"]
N = 100_000
BULK = "api"
CONFIG = (
    "async handler, concurrency=500, WAL, synchronous=FULL (its default); finished jobs, counts and history are kept"
)
WORKLOADS = ["W1", "W2", "W3"]

URL = f"sqlite:///{os.environ['BENCH_SQLITE_DIR']}/jobs.db"


async def setup() -> None:
    await make_store(URL)


class Producer(Door):
    def __init__(self) -> None:
        super().__init__(URL)


def worker() -> None:
    work(URL)
