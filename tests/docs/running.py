"""Runs the Python examples of one page, in order and in one namespace, in the working directory.

    python -m tests.docs.running PAGE

Examples that name a file are saved as it and imported; tests among them are run by pytest at the end. An example that
fails ends the program with the page and the line.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tests.docs.pages import ROOT, Block, blocks_of
from tests.docs.setups import SETUPS, SWAPS

MODULE: Final = "page"
SWAP: Final = "SWAP_"
"""Variables of the test: a text of the page, a space, and what stands in for it."""


def main(page: Path) -> int:
    """0 if every example ran."""
    sys.path.insert(0, str(Path.cwd()))
    module = sys.modules[MODULE] = ModuleType(MODULE)
    module.__dict__["ROOT"] = ROOT
    blocks = [one for one in blocks_of(page, "python") if one.reason is None]
    with asyncio.Runner() as runner:
        setup = SETUPS.get(str(page.relative_to(ROOT)), "")
        _execute(setup, "setup", 0, module.__dict__, runner)
        for block in blocks:
            try:
                _run(block, module.__dict__, runner)
            except BaseException:  # noqa: BLE001 - whatever an example raises is reported with its line
                traceback.print_exc()
                sys.stderr.write(f"{block.where}: this example does not run\n")
                return 1
    return _run_tests(blocks)


def swapped(text: str) -> str:
    """An example with what stands in for servers."""
    for pattern, other in SWAPS:
        text = pattern.sub(other, text)
    for name, value in os.environ.items():
        if name.startswith(SWAP):
            here, _, there = value.partition(" ")
            text = text.replace(here, there)
    return text


def _run(block: Block, names: dict[str, Any], runner: asyncio.Runner) -> None:
    text = swapped(block.text)
    if block.file is None:
        _execute(text, str(block.page), block.line - 1, names, runner)
        return
    file = Path(block.file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    name = str(file.with_suffix("")).replace("/", ".")
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    names.update(vars(importlib.import_module(name)))


def _execute(text: str, page: str, lines_before: int, names: dict[str, Any], runner: asyncio.Runner) -> None:
    """Run a text as it stands on its page; it may await."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile("\n" * lines_before + text, page, "exec", flags=flags, dont_inherit=True)
    names["__name__"] = MODULE
    known = set(names)
    runner.run(_awaited(eval(code, names)))
    for name in [one for one in names if one not in known and one.startswith("test_")]:
        if not inspect.signature(names[name]).parameters:
            runner.run(_awaited(names[name]()))


async def _awaited(done: Any) -> None:
    """A coroutine's work runs here; everything else is over already."""
    if inspect.isawaitable(done):
        await done


def _run_tests(blocks: Iterable[Block]) -> int:
    files = [one.file for one in blocks if one.file is not None and Path(one.file).name.startswith("test_")]
    if not files:
        return 0
    pytest = importlib.import_module("pytest")  # Few pages need it, and it takes a while to load.
    options = ["-q", "--rootdir=.", "-c=/dev/null", "-pno:cacheprovider", "-pno:schemathesis", "-pno:xdist"]
    return int(pytest.main([*options, "--import-mode=importlib", *files]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
