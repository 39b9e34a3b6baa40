"""Rules about the project that no tool checks by itself."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_core_imports_the_standard_library_and_exceptions_only() -> None:
    """The import contract can only forbid packages it names; this knows every package there is."""
    foreign = {name for path in (ROOT / "src/everwork/core").rglob("*.py") for name in _imports(path)}
    allowed = sys.stdlib_module_names | {"everwork.core", "everwork.exceptions"}
    assert {name for name in foreign if not _within(name, allowed)} == set()


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (ROOT / "src/everwork/py.typed").exists()


def _imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}


def _within(name: str, allowed: set[str] | frozenset[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:length]) in allowed for length in range(1, len(parts) + 1))
