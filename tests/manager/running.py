"""Managers in processes of their own, what their workers say, and their store as everybody else sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from everwork import Event, Job, State
from everwork.core.job import HistoryEntry
from everwork.core.queries import JobFilter
from everwork.engines.open import open_engine
from everwork.service.jobs import in_process
from everwork.service.service import JobService
from tests.app.waiting import until
from tests.forked import ForkedPopen
from tests.manager.workers import INBOX, LOG

ROOT: Final = Path(__file__).resolve().parents[2]
LATE_S: Final = 30.0
"""The deadline of everything here: far more than anything takes, also on a machine that is busy with other tests."""
MUTE: Final = ("BrokenInit", "BrokenStartup", "Endless", "fragile.Fragile")
"""Workers that do not say when they start."""


class Said:
    """The lines that workers have written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, word: str, *facts: object) -> list[list[str]]:
        """Those that begin with a word, have these facts after their process id, and maybe more."""
        wanted = [str(fact) for fact in facts]
        text = self.path.read_text() if self.path.exists() else ""
        split = [line.split() for line in text.splitlines()]
        return [line for line in split if line[0] == word and line[2 : 2 + len(wanted)] == wanted]

    def pids(self, word: str, *facts: object) -> list[int]:
        """Who has said so, in their order."""
        return [int(line[1]) for line in self.lines(word, *facts)]

    async def times(self, count: int, word: str, *facts: object) -> None:
        """Wait until it has been said so often."""
        await until(lambda: len(self.lines(word, *facts)) >= count, LATE_S)


class Manager:
    """A manager and its processes: a process group of their own."""

    def __init__(self, url: str, said: Said, processes: Iterable[str], settings: dict[str, Any]) -> None:
        self.err = said.path.with_name(f"err-{len(list(said.path.parent.glob('err-*')))}")
        with self.err.open("wb") as err:
            self._process = ForkedPopen(
                ["tests.manager.program", url, json.dumps(settings), *processes],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=err, stderr=err, start_new_session=True,
                env={**os.environ, LOG: str(said.path), INBOX: f"inbox-{inbox_word(said.path)}"},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The manager's own process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """A signal to the manager alone."""
        self._process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """A signal to it and all its processes, as a terminal sends it."""
        os.killpg(self.pid, number)

    def log(self) -> str:
        """What it has logged."""
        return self.err.read_text()

    async def logged(self, text: str, count: int = 1) -> None:
        """Wait until it has logged something."""
        await until(lambda: self.log().count(text) >= count, LATE_S)

    async def exit_code(self) -> int:
        """Wait for its end."""
        await until(lambda: not self.is_running, LATE_S)
        return int(self._process.returncode)

    async def stop_twice(self) -> None:
        """SIGTERM, and another one when the first has been heard."""
        self.send(signal.SIGTERM)
        await self.logged("manager stopping")
        self.send(signal.SIGTERM)

    def members(self) -> list[int]:
        """Those of its process group that live."""
        pids = [int(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()]
        return [pid for pid in pids if _is_member(pid, self.pid)]

    def end(self) -> None:
        """Kill what is left of all of them."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Outside:
    """The store, from a process that runs no workers."""

    def __init__(self, url: str) -> None:
        self.service = JobService(open_engine(url), "outside")

    async def push(self, source: str, **kwargs: Any) -> int:
        """Publish an event."""
        return (await self.push_many(source, [kwargs]))[0]

    async def push_many(self, source: str, kwargs: Iterable[dict[str, Any]]) -> list[int]:
        """Publish events in one step."""
        jobs = [Event(source=source, kwargs=one).to_job() for one in kwargs]
        return [created.key for created in await self.service.create(jobs)]

    async def job(self, key: int) -> Job:
        """The job as it stands."""
        return Job.of(await self.service.get(key))

    async def jobs(self, type: str) -> list[Job]:
        """All jobs of a type."""
        jobs: list[Job] = []
        cursor: int | None = None
        while True:
            page = await self.service.find(JobFilter(type=type), 100, cursor)
            jobs += map(Job.of, page.jobs)
            cursor = page.next
            if cursor is None:
                return jobs

    async def all_are(self, state: State, keys: Iterable[int], deadline_s: float = LATE_S) -> list[Job]:
        """Wait until all these jobs are in a state."""
        wanted = list(keys)

        async def are() -> bool:
            return all(job is not None and job.state is state for job in await self.service._engine.get(wanted))

        await until(are, deadline_s)
        return [await self.job(key) for key in wanted]

    async def ends(self, key: int) -> HistoryEntry:
        """Wait until the job's first attempt has ended; how."""
        found: list[HistoryEntry] = []

        async def has_ended() -> bool:
            found[:] = await in_process(self.service).history(key)
            return bool(found)

        await until(has_ended, LATE_S)
        return found[0]


def inbox_word(path: Path) -> str:
    """A word of the test's own."""
    return path.parent.name.replace("[", "-").replace("]", "")


def _is_member(pid: int, group: int) -> bool:
    try:
        state, _, pgrp, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(pgrp) == group and state != "Z"
