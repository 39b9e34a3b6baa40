"""What the torture has found, told in small."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.manager.spawning import a_process


async def test_a_process_that_dies_and_is_let_go_while_it_is_asked_where_it_stands_says_nothing(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    asked = asyncio.ensure_future(process.stack())
    await asyncio.sleep(0)
    process.kill("was killed")
    await process.ended.wait()
    process.close()
    assert await asked == ""
