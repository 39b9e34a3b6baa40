"""Every example of the documentation runs, or its page says why it cannot."""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.client.server import KEY, ServerProcess
from tests.docs.pages import PAGES, ROOT, Block, blocks_of
from tests.forked import Finished, run_forked

WITH_PYTHON: Final = [page for page in PAGES if blocks_of(page, "python")]
SERVER: Final = "127.0.0.1:27500"
"""Where the programs of pages expect one."""


def every(language: str) -> Iterator[Block]:
    return (block for page in PAGES for block in blocks_of(page, language))


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if any(SERVER in block.text for block in blocks_of(page, "python") if not block.reason):
        with serving(tmp_path) as swaps:
            ran = run(page, tmp_path, swaps)
    else:
        ran = run(page, tmp_path, {})
    assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()


@contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """A server for the programs of a page, and what they are told of it."""
    server = ServerProcess("sqlite:///server.db", folder).start()
    try:
        yield {"SWAP_SERVER": f"{SERVER} {server.address}", "SWAP_KEY": f"YOUR-KEY {KEY}"}
    finally:
        server.stop()


def run(page: Path, folder: Path, swaps: dict[str, str]) -> Finished:
    """The examples of a page in a process of their own."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("EVERWORK_", "DJANGO_"))}
    return run_forked("tests.docs.running", [str(page)], cwd=folder, env=environment | swaps, timeout=100)


def test_examples_that_are_not_run_say_why() -> None:
    reasons = [f"{block.where}: {block.reason}" for block in every("python") if block.reason]
    print(f"{len(reasons)} of {len(list(every('python')))} examples are not run:", *reasons, sep="\n")
    assert [one for one in reasons if len(one.partition(": ")[2]) < 15] == []
    assert len(reasons) <= NOT_RUN_MAX


NOT_RUN_MAX: Final = 12
"""Code of other systems, and programs that only end when they are stopped. Raise it with a reason."""


def test_every_python_example_parses() -> None:
    for block in every("python"):
        compile(block.text, block.where, "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("language", "parse"), [("json", json.loads), ("toml", tomllib.loads), ("yaml", yaml.safe_load)]
)
def test_every_example_of_a_file_parses(language: str, parse: Callable[[str], object]) -> None:
    problems = []
    for block in every(language):
        try:
            parse(block.text)
        except (ValueError, yaml.YAMLError) as error:
            problems.append(f"{block.where}: {error}")
    assert problems == []


def test_every_make_command_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = {
        (page.name, target)
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", *ROOT.glob("examples/**/*.md")]
        for target in re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert {one for one in mentioned if one[1] not in targets} == set()
