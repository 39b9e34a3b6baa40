"""A program that is its own main script: its processes know its classes under another module's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.manager.running import LATE_S

PROGRAM = """
import asyncio
from everwork import *
from everwork.exceptions import JobFailed

class CardDeclined(Exception): ...

class Charger(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        rule = ErrorRule("permanent", exception=CardDeclined)
        return WorkerSettings(
            title="charger", sources={"card-charge"}, retry=RetryPolicy(base=0.0), policy=TypePolicy(errors=(rule,))
        )

    async def __call__(self):
        raise CardDeclined("no money")

class Hasty(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="hasty", policy=TypePolicy(strict=True))

    async def __call__(self): ...

async def main():
    manager = ProcessManager(
        uuid="m", processes=[Process(workers=[Charger, Hasty])],
        backend=SqliteBackend(STORE), broker=SqliteBroker(STORE),
    )
    async with Everwork(STORE) as app:
        running = asyncio.create_task(manager.run())
        key = await app.enqueue("card-charge")
        try:
            await app.result(key, timeout=20)
        except JobFailed:
            print("attempts:", (await app.get(key)).attempts)
        manager.stop()
        await running

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_rule_about_a_class_of_the_main_script_holds_in_the_processes_of_its_manager(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"STORE = 'sqlite:///{tmp_path}/jobs.db'\n{PROGRAM}")
    ran = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LATE_S, check=False
    )
    assert "attempts: 1\n" in ran.stdout, ran.stderr
    # Beside it: a worker that says how errors are to be judged, and is never asked.
    told = [line for line in (ran.stdout + ran.stderr).splitlines() if "error rules have no effect" in line]
    assert len(told) == 1
    assert "title='hasty'" in told[0]
    assert "fields=['strict']" in told[0]
