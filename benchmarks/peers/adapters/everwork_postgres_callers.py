"""Everwork on postgres: enqueued singly by 64 concurrent callers."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))

from benchmarks.peers.adapters._door import Callers, make_store, work

ENGINE = "postgres"
VENV = "everwork"
DIST = "everwork"
PACKAGES = ["-e", ".[all]"]
N = 20_000
N_SINGLE = 200
BULK = "gather"
CONFIG = "bulk is 64 concurrent callers, each app.enqueue sequentially"
WORKLOADS = ["W1"]
PENDING = "SELECT count(*) FROM everwork.live"

URL = os.environ["BENCH_PG_DSN"]


async def setup() -> None:
    await make_store(URL)


class Producer(Callers):
    def __init__(self) -> None:
        super().__init__(URL)


def worker() -> None:
    work(URL)
