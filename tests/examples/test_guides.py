"""The guides to web frameworks: the programs on the pages run, and so do their tests."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import httpx
import pytest

DOCS: Final = Path(__file__).parents[2] / "docs" / "how-to"
TYPES_READ: Final = Path(__file__).parents[2] / ".mypy_cache" / "guides"
"""The cache that mypy keeps between test runs, next to that of `make lint`."""
PROGRAMS: Final = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```", re.DOTALL | re.MULTILINE)
FRAGMENTS: Final = re.compile(r"^```python\n(?!# \w+\.py\n)(.*?)^```", re.DOTALL | re.MULTILINE)


def programs_of(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The program on a page, and its test, imported from a folder of their own."""
    for name, text in PROGRAMS.findall((DOCS / page).read_text()):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in ("shop", "test_shop"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("shop"), importlib.import_module("test_shop")


@pytest.mark.parametrize("page", ["fastapi.md", "flask.md"])
async def test_the_test_on_the_page_passes(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tests = programs_of(page, tmp_path, monkeypatch)
    [test] = [one for name, one in vars(tests).items() if name.startswith("test_")]
    if inspect.iscoroutinefunction(test):
        await test()
    else:
        await asyncio.to_thread(test)


@pytest.mark.timeout(400)  # The first run reads the types of whole frameworks.
def test_the_examples_pass_strict_type_checks(tmp_path: Path) -> None:
    for page in ("fastapi.md", "sqlalchemy.md"):
        folder = tmp_path / page
        folder.mkdir()
        text = (DOCS / page).read_text()
        for name, program in PROGRAMS.findall(text):
            (folder / f"{name}.py").write_text(program)
        with (folder / "shop.py").open("a") as shop:
            shop.writelines(f"\n{fragment}" for fragment in FRAGMENTS.findall(text))
        options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={TYPES_READ}"]
        done = subprocess.run(
            [sys.executable, "-m", "mypy", *options, "."],
            cwd=folder,
            env=os.environ | {"MYPYPATH": str(DOCS.parents[1] / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.splitlines()[:-1]) == (0, []), done.stdout + done.stderr


async def test_the_other_examples_for_fastapi_belong_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, _ = programs_of("fastapi.md", tmp_path, monkeypatch)
    for fragment in FRAGMENTS.findall((DOCS / "fastapi.md").read_text()):
        exec(fragment, vars(shop))
    async with shop.lifespan(shop.api):
        transport = httpx.ASGITransport(app=shop.api)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.post("/reminders", params={"order": 7, "to": "ada"})).status_code == 200
        assert [job.type async for job in shop.app.list()] == ["receipt-send"]
