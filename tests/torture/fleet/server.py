"""A server of the fleet: `python -m tests.torture.fleet.server`, see `process.Life`. Calls to its engine are logged."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from everwork.cli.main import run
from everwork.engines.contract import Engine
from everwork.engines.open import open_engine
from everwork.server import server
from tests.torture import faults
from tests.torture.fleet.parts import begin
from tests.torture.history import HistoryWriter
from tests.torture.logged import watched
from tests.torture.process import Life

PORTS: Final = "EVERWORK_TORTURE_PORTS"
"""The environment variable with the ports of a server, for gRPC and REST."""


def serve(life: Life, history: HistoryWriter) -> int:
    """Serve until SIGTERM or SIGKILL."""

    def open_watched(url: str, **options: Any) -> Engine:
        return watched(open_engine(url, **options), history)

    vars(server)["open_engine"] = open_watched
    grpc_port, http_port = os.environ.pop(PORTS).split()
    faults.arm(life.url, os.environ.get(faults.VARIABLE))
    arguments = ["serve", "--engine", life.url, "--grpc-port", grpc_port, "--http-port", http_port]
    code = run([*arguments, "--offline", str(life.folder / f"{life.name}.spool")])
    if code:
        history.broken(RuntimeError(f"the server ended with code {code}"))
    return code


if __name__ == "__main__":
    sys.exit(serve(*begin()))
