"""The worked example of the manual, run by a pytest of its own that finds the fixtures by their entry point."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("giftcards.py", "test_giftcards.py", "test_async.py", "test_unittest.py", "test_stock.py")


def test_the_example_of_the_manual_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/testing.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for name, example in zip(FILES, examples, strict=True):
        (tmp_path / name).write_text(example)
    _install_entry_points(tmp_path)
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", *_plugins_of_others())]
    ran = _python(tmp_path, "-m", "pytest", "-q", "--rootdir=.", *without)
    assert "8 passed" in ran.stdout, ran.stdout
    assert not (tmp_path / "shop.db").exists()


def test_pytest_pays_nothing_for_fixtures_that_no_test_asks_for(tmp_path: Path) -> None:
    loaded = _python(tmp_path, "-c", "import sys, everwork.testing.fixtures; print(*sys.modules)").stdout.split()
    heavy = {
        "asyncpg",
        "everwork.app",
        "everwork.engines",
        "everwork.manager",
        "everwork.runtime",
        "pydantic",
        "redis",
        "structlog",
        "uvloop",
    }
    assert heavy.isdisjoint(loaded)


def test_the_kit_needs_no_pytest(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pytest'] = None; from everwork.testing import *; print(rehearse.__name__)"
    assert _python(tmp_path, "-c", program).stdout == "rehearse\n"


def _plugins_of_others() -> set[str]:
    """Those that users may not have; to load them takes longer than the tests."""
    return {point.name for point in entry_points(group="pytest11")} - {"asyncio", "everwork"}


def _install_entry_points(folder: Path) -> None:
    """What an installation leaves of pyproject.toml, where Python looks for it."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = folder / "rehearsed-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rehearsed\nVersion: 1\n")
    lines = [f"{name} = {module}" for name, module in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{folder}:{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, text=True, capture_output=True, check=False
    )
