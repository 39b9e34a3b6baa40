"""The tutorial is followed: its files are written, its sessions run beside a worker, its tests pass."""

import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "tutorial"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, as a newcomer has it, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    yield tmp_path
    shop = sys.modules.pop("shop", None)
    if shop is not None:
        shop.app.sync.close()


def test_the_session_of_the_first_job_prints_what_the_page_shows(folder: Path) -> None:
    page = (PAGES / "first-job.md").read_text("utf-8")
    (folder / "shop.py").write_text(_blocks(page, "python")[0], "utf-8")
    session = "\n".join(_blocks(page, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, "first-job.md", "first-job.md", 0)
    with _worker(folder):
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_the_tests_of_the_first_failure_pass(folder: Path) -> None:
    blocks = _blocks((PAGES / "first-failure.md").read_text("utf-8"), "python")
    (folder / "shop.py").write_text("\n\n".join(blocks[:-1]), "utf-8")
    names = dict(vars(importlib.import_module("shop")))
    exec(compile(blocks[-1], "test_shop.py", "exec", dont_inherit=True), names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@contextmanager
def _worker(folder: Path) -> Iterator[None]:
    """`everwork worker shop:app`, started."""
    command = [sys.executable, "-m", "everwork", "worker", "shop:app"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            assert "worker started" in process.stderr.readline()
            yield
        finally:
            process.terminate()
