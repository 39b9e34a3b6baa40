"""Watches the Python files of a program, by polling their sizes and modification times."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.5
SCAN_SHARE: Final = 10
"""The pause between polls is at least this many times as long as a poll, so that a large directory does not use up a
core.
"""
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Files = Mapping[str, tuple[int, int]]
"""Paths, each with its modification time and size."""


class FileWatch:
    """The Python files below some directories, except those in virtual environments, caches and hidden directories."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(dict.fromkeys(folders))
        self._known: Files = {}
        self._pause = POLL_SECONDS

    def look(self) -> None:
        """Record the current files; only later changes count."""
        self._known = self._scan()

    async def changed(self) -> list[str]:
        """Wait for changes until they settle, and return the changed files, relative to the first directory."""
        while True:
            await asyncio.sleep(self._pause)
            files = await asyncio.to_thread(self._scan)
            if files == self._known:
                continue
            while (later := await self._scan_again()) != files:
                files = later
            changed = [path for path in files.keys() | self._known.keys() if files.get(path) != self._known.get(path)]
            return sorted(map(self._relative, changed))

    def _relative(self, path: str) -> str:
        root = self.folders[0]
        return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path

    async def _scan_again(self) -> Files:
        await asyncio.sleep(min(self._pause, POLL_SECONDS) / 2)
        return await asyncio.to_thread(self._scan)

    def _scan(self) -> Files:
        began = time.monotonic()
        files = {path: facts for folder in self.folders for path, facts in _python_files(folder)}
        self._pause = max(POLL_SECONDS, (time.monotonic() - began) * SCAN_SHARE)
        return files


def _python_files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    below = [str(folder)]
    while below:
        with suppress(OSError), os.scandir(below.pop()) as entries:  # It may have been deleted.
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if _is_watched(entry):
                        below.append(entry.path)
                elif entry.name.endswith(".py") and not entry.name.startswith("."):  # Hidden: editors' locks.
                    with suppress(OSError):  # A broken link must not hide the files after it.
                        facts = entry.stat()
                        yield entry.path, (facts.st_mtime_ns, facts.st_size)


def _is_watched(folder: os.DirEntry[str]) -> bool:
    is_skipped = folder.name.startswith(".") or folder.name in SKIPPED
    return not is_skipped and not os.path.exists(f"{folder.path}/pyvenv.cfg")  # noqa: PTH110 - `Path.exists` may raise


def program_folders(module: str, folder: Path) -> list[Path]:
    """The directories with a program's files: its own, and its package's if that is installed from elsewhere."""
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(str(folder))
    found = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    outside = [one for one in found if not one.is_relative_to(folder) and "site-packages" not in one.parts]
    return [folder, *outside]
