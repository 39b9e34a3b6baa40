"""Who may hold an engine: the service does, and those who open one for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import everwork

SOURCE: Final = Path(everwork.__file__).parent
BELOW: Final = ("engines/", "service/")
ROOTS: Final = frozenset(
    {
        "app/engine_host.py",
        "cli/commands/bench.py",
        "cli/commands/migrate.py",
        "cli/session.py",
        "client/local.py",
        "manager/child.py",
        "manager/manager.py",
        "manager/stores.py",
        "manager/tick.py",
        "server/server.py",
    }
)
"""Composition roots: they open an engine and pass it to a service."""
TEXTS: Final = frozenset({"settings", "health"})
"""The field `engine` of these is a URL or a name."""


def test_nobody_above_the_service_reaches_through_it_for_its_engine() -> None:
    assert [found for path, tree in _modules() for found in _reached(path, tree)] == []


def test_only_composition_roots_open_an_engine() -> None:
    opening = {path for path, tree in _modules() if "everwork.engines.open" in _imported(tree)}
    assert opening == ROOTS


@pytest.mark.parametrize(
    "line", ["service.engine.count()", "Fleet(self._service.engine)", "(await opened()).engine", "host._engine.now()"]
)
def test_every_way_to_reach_for_an_engine_is_found(line: str) -> None:
    tree = ast.parse(f"async def use():\n    {line}")
    assert list(_reached("app/engine_host.py", tree)) == ["app/engine_host.py:2"]


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        path = file.relative_to(SOURCE).as_posix()
        if not path.startswith(BELOW):
            yield path, ast.parse(file.read_text())


def _reached(path: str, tree: ast.Module) -> Iterator[str]:
    """Where an engine is taken from something; a root may use its own."""
    own = {"self"} if path in ROOTS or path == "server/settings.py" else set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("engine", "_engine")
            and _name(node.value) not in TEXTS | own
        ):
            yield f"{path}:{node.lineno}"


def _name(node: ast.expr) -> str:
    """The last name of an expression: `health` of `(await self.health())`."""
    match node:
        case ast.Await(value=inner) | ast.Call(func=inner):
            return _name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _imported(tree: ast.Module) -> set[str]:
    return {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
