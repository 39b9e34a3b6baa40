"""A server that is killed: `python -m tests.torture.offline.server`, see `process.Life`. Its engine is watched."""

from __future__ import annotations

import os
import sys
from typing import Any

from everwork.cli.main import run
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.server import server
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched
from tests.torture.offline.outages import PORTS
from tests.torture.offline.parts import main
from tests.torture.process import Life


def serve(life: Life, history: HistoryWriter) -> None:
    """Serve until it is killed."""

    def open_watched(url: str, **options: Any) -> Engine:
        return watched(open_engine(url, **options), history)

    vars(server)["open_engine"] = open_watched
    grpc_port, http_port = os.environ.pop(PORTS).split()
    history.joins()
    sys.exit(run(["serve", "--engine", life.url, "--grpc-port", grpc_port, "--http-port", http_port]))


if __name__ == "__main__":
    main(serve)
