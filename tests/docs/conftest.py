"""The built site, once per test run: `make test` has built it, or the first process that needs it does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.docs.pages import ROOT
from tools.browser import find_browser


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = os.environ.get("EVERWORK_TEST_SITE")
    place = shared / "docs" if made is None else ROOT / made
    place.mkdir(exist_ok=True, parents=True)
    folder, report = place / "html", place / "report"
    with (shared / "docs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report.exists():
            report.write_text(_build(folder), "utf-8")
    problems = report.read_text("utf-8")
    assert problems == "", problems
    return folder


def _build(folder: Path) -> str:
    """In a process of its own: autodoc imports much, and changes the warnings of Python."""
    command = [sys.executable, "-m", "tools.site", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr + done.stdout if done.returncode else ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The system's Chromium; without one, its tests are skipped, and the end of the run says so."""
    path = find_browser()
    if path is None:
        pytest.skip("no browser")
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=path, chromium_sandbox=os.geteuid() != 0, args=["--disable-dev-shm-usage"]
        )
        yield started
        await started.close()
