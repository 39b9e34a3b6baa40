"""What the torture has found, told in small."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.manager.spawning import a_process

BUSY_PROGRAM = """
import sys, threading
from everwork.manager.child import dump_stack_on_signal

def recurse(depth):
    return depth and recurse(depth - 1)

def stay_busy():
    while True:
        recurse(30)
        threading.Thread(target=recurse, args=(3,)).start()

sys.setswitchinterval(0.0001)
dump_stack_on_signal(sys.stderr.fileno())
for _ in range(2):
    threading.Thread(target=stay_busy, daemon=True).start()
for line in sys.stdin:
    print(line, end="", flush=True)
"""
DUMPS = 300
"""With the stacks of all threads, the process died within the first hundred."""


async def test_a_process_that_dies_and_is_let_go_while_it_is_asked_where_it_stands_says_nothing(tmp_path: Path) -> None:
    process = a_process(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)
    asked = asyncio.ensure_future(process.stack())
    await asyncio.sleep(0)
    process.kill("was killed")
    await process.ended.wait()
    process.close()
    assert await asked == ""


def test_a_process_with_busy_threads_survives_the_dumps_of_its_stack() -> None:
    command = [sys.executable, "-c", BUSY_PROGRAM]
    with subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"alive\n")
            for _ in range(DUMPS):
                assert process.stdout.readline() == b"alive\n"
                process.send_signal(signal.SIGUSR2)
                process.stdin.write(b"alive\n")
        finally:
            process.kill()
