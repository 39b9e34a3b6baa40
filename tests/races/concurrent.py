"""A crew of actor processes that begin at the same moment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from tests.forked import ForkedPopen

_ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS_MAX: Final = 90


def act_at_once(url: str, roles: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Let one process per role act, all from the same signal on; their answers, in the order of the roles.

    A process that meets any error fails the test with that error.
    """
    crew = [
        ForkedPopen(
            ["tests.races.actor", role, url, json.dumps(arguments)],
            cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for role, arguments in roles
    ]  # fmt: skip
    try:
        for process in crew:
            assert process.stdout is not None
            process.stdout.readline()
        for process in crew:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_answer(process) for process in crew]
    finally:
        for process in crew:
            process.kill()
            process.wait()


def _answer(process: subprocess.Popen[str]) -> Any:
    output, errors = process.communicate(timeout=_SECONDS_MAX)
    assert process.returncode == 0, errors
    return json.loads(output)
