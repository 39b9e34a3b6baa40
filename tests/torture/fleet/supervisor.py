"""`everwork worker` with functions, as an operator starts it: `python -m tests.torture.fleet.supervisor`."""

from __future__ import annotations

import json
import os
import sys
from typing import Final

from everwork.cli.main import run
from tests.torture.fleet import functions
from tests.torture.process import die_with_the_controller

PROCESSES: Final = 2


def main() -> int:
    """Supervise processes until SIGTERM."""
    die_with_the_controller()
    os.environ[functions.LIFE] = json.dumps(sys.argv[1:])
    target = "tests.torture.fleet.functions:make_app"
    return run(["worker", target, "--processes", str(PROCESSES), "--log-format", "json"])


if __name__ == "__main__":
    sys.exit(main())
