"""Fixtures for every test that needs a store of jobs."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, settings

from tests import shared_servers
from tests.children import guard_children, kill_children
from tests.stores import ENGINES, EVERYTHING, VirtualClock, drop_stores, open_store, ways_of
from tools import node, other_django
from tools.browser import find_browser, why_none

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from everwork.engines.contract import Engine


settings.register_profile("any-speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-speed")

MEMORY: Final = "/dev/shm"
MEMORY_BYTES_MIN: Final = 4 * 2**30
LONG: Final = (
    "tests/browser/",
    "tests/docs/test_questions",
    "tests/docs/test_site",
    "tests/typing/",
    "tests/hostile/",
    "tests/torture/",
    "tests/soak/",
    "tests/server/http/test_fuzz",
    "tests/server/grpc/test_storm",
    "tests/server/grpc/test_half_open",
    "tests/server/test_offline",
    "tests/client/test_offline",
    "tests/client/test_trouble",
    "tests/app/test_offline",
    "tests/manager/",
    "tests/model/",
    "tests/races/",
    "tests/seeds/",
    "tests/foreign/",
    "tests/cli/",
)
"""What takes longest begins first, so that nobody waits for it alone in the end."""
ON_EVERY_ENGINE: Final = (
    "tests/cli/",
    "tests/client/",
    "tests/model/",
    "tests/races/",
    "tests/torture/",
)
"""What kills processes at any moment or compares engines does so on each of them."""


def pytest_configure(config: pytest.Config) -> None:
    """The main process begins the run before it starts others, so that they all find the same servers.

    Files of tests are in memory where there is plenty: thousands of them sync what nobody keeps.
    """
    guard_children()
    if os.path.ismount(MEMORY) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    shared_servers.begin_run()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imported modules and collected tests never become garbage, so they are excluded from garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the engines of a test: all of them where engines may differ, else SQLite; see CONTRIBUTING.md.

    With `EVERWORK_TEST_EVERYTHING=1` (`make test-all`) every test runs on every engine that it can run on.
    """
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "engine_name" in metafunc.fixturenames and not any("engine_name" in names for names in chosen):
        metafunc.parametrize("engine_name", _engines_of(metafunc.definition), indirect=True)


def _engines_of(test: pytest.Item) -> list[str]:
    if test.nodeid.startswith("tests/conformance/"):
        return ways_of(test.get_closest_marker("every_way"), by_poll=not test.get_closest_marker("not_by_poll"))
    is_everywhere = EVERYTHING or test.get_closest_marker("every_engine") or test.nodeid.startswith(ON_EVERY_ENGINE)
    return ENGINES if is_everywhere else ENGINES[:1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, each file's by another process, all with a browser by one; the others in their order.

    At first each process gets the next part of the list, a share of its quarter; what follows goes to whoever is free.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    part = len(items) // (4 * processes)
    long = [item for item in items if item.nodeid.startswith(LONG)]
    others = [item for item in items if not item.nodeid.startswith(LONG)]
    piles: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number, (_, tests) in enumerate(groupby(long, key=_belongs_to)):
        piles[number % processes] += tests
    items.clear()
    for pile in piles:
        room = max(0, part - len(pile))
        items += pile + others[:room]
        del others[:room]
    items += others


def _belongs_to(item: pytest.Item) -> Path:
    """What runs in one process: a file, or all tests that share a browser (it takes much memory) or the built site."""
    return item.path.parent if item.nodeid.startswith(("tests/browser/", "tests/docs/")) else item.path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nobody shall think that something was tested when it was not."""
    missing = {} if find_browser() else {"THE DASHBOARD WAS NOT TESTED": f"No browser: {why_none()}"}
    if node.find_packages() is None:
        missing["PROGRAMS IN JAVASCRIPT WERE NOT TESTED"] = f"No packages: {node.ADVICE}"
    if other_django.find_environment() is None:
        missing[f"{other_django.NAME.upper()} WAS NOT TESTED"] = f"No environment: {other_django.ADVICE}"
    for title, reason in missing.items():
        terminalreporter.write_sep("!", title, red=True, bold=True)
        terminalreporter.write_line(reason, red=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test's timeout is off once it has failed, so each of its fixtures gets the time of a test to end."""
    if any(signal.getitimer(signal.ITIMER_REAL)):
        return (yield)
    seconds = float(item.config.getoption("timeout") or item.config.getini("timeout") or 0)
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _give_up(*_: object) -> None:
    pytest.fail("a fixture of a failed test did not end")


def pytest_unconfigure() -> None:
    """No process is left; only the main process ends the run."""
    kill_children()
    shared_servers.end_run()


@pytest.fixture(autouse=True)
def _stores_are_dropped() -> Iterator[None]:
    yield
    drop_stores()


@pytest.fixture
def clock() -> VirtualClock:
    """The clock of the test's engine."""
    return VirtualClock()


@pytest.fixture
def engine_name(request: pytest.FixtureRequest) -> str:
    """Which engine the test runs on."""
    return str(request.param)


@pytest.fixture
async def engine(engine_name: str, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Engine]:
    """An open engine on a fresh store."""
    opened = await open_store(engine_name, tmp_path, clock, reuse=True)
    yield opened
    await opened.close()
