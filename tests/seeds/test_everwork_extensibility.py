"""Other stores: an installed package provides an engine by an entry point, and everything reaches it by its URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from everwork import Event, Everwork, State
from everwork.engines.open import open_engine
from everwork.engines.sqlite.engine import SqliteEngine
from everwork.exceptions import BadConfiguration
from tests.app.waiting import run_one

ROOT: Final = Path(__file__).parents[2]
PLUGINS: Final = ROOT / "tests" / "plugins"
"""Two installed packages, as their metadata have it."""
SECONDS_MAX: Final = 300


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


@pytest.mark.usefixtures("_installed")
async def test_an_application_and_a_broker_work_on_an_engine_of_another_package(tmp_path: Path) -> None:
    from everwork_toy import ToyBroker  # type: ignore[import-not-found]  # noqa: PLC0415 - installed for this test

    app = Everwork(f"toy:///{tmp_path / 'jobs.db'}")

    @app.job("hello")
    async def hello(name: str = "") -> str:
        return f"hello {name}"

    async with app, ToyBroker(f"toy:///{tmp_path / 'jobs.db'}") as broker:
        assert (await run_one(app, "hello", name="Ada")).state is State.COMPLETED
        key = await broker.push(Event(source="hello", kwargs={"name": "Bob"}))
        assert (await app.run_once()).completed == 1
        assert await app.result(key) == "hello Bob"


def test_the_conformance_suite_runs_on_it() -> None:
    ours = ("EVERWORK_", "PYTEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"PYTHONPATH": str(PLUGINS), "EVERWORK_TEST_ENGINES": "toy", "EVERWORK_TEST_TOY": "toy:///{folder}/jobs.db"}
    suite = [f"tests/conformance/test_{topic}.py" for topic in ("create", "activate", "cancel")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *suite],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2_000:]
    assert " passed" in done.stdout


@pytest.mark.usefixtures("_installed")
def test_a_built_in_scheme_cannot_be_replaced() -> None:
    assert isinstance(open_engine("sqlite:///jobs.db"), SqliteEngine)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://host/db", r"unknown scheme 'mysql'; it must start with one of sqlite://.*, toy://, twice://"),
        ("twice:///jobs.db", "twice:// is provided by everwork-broken and everwork-toy; uninstall all but one"),
        ("missing:///jobs.db", r"\(everwork_gone:open_gone, package everwork-broken\) cannot be used: ModuleNotFound"),
        ("nothing:///jobs.db", "package everwork-broken.* TypeError: it must return an everwork.engines.contract"),
        ("badly:///jobs.db", "package everwork-broken.* KeyError: 'no such driver'; update or uninstall the package"),
    ],
)
def test_a_scheme_that_leads_nowhere_is_refused_with_the_reason(url: str, problem: str) -> None:
    with pytest.raises(BadConfiguration, match=f"engine URL: .*{problem}"):
        open_engine(url)
