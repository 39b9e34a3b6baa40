"""A plain `pip install` is enough for everything, and a process still loads only what it uses."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from tests.stores import url_of

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT_BY_USERS: Final = frozenset(
    (
        *("psycopg", "psycopg2-binary", "pytest", "pytest-asyncio", "sqlalchemy"),
        *("asgiref", "click", "django", "django-tasks", "flask"),
    )
)
"""Whose transactions we join, the runner that our fixtures extend, and frameworks: they are loaded by users first."""
OPTIONAL: Final = frozenset(
    (
        *("asyncpg", "redis", "sqlite3"),
        *("grpc", "google.protobuf", "jinja2", "prometheus_client", "starlette", "typer", "uvicorn"),
    )
)
"""Modules that a process pays for in memory and time."""
WORKER: Final = """
import os, signal, sys
from everwork import Everwork

app = Everwork(sys.argv[1])

@app.job("report")
async def report() -> None:
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

app.sync.enqueue("report")
app.run()
"""


def test_whatever_the_package_imports_is_installed_with_it() -> None:
    named = (re.findall(r"[\w.-]+", one.partition(";")[0].partition(">")[0]) for one in PROJECT["dependencies"])
    installed = {_normal(name) for names in named for name in names}
    packages = {name for path in (ROOT / "src/everwork").rglob("*.py") for name in _imported(path)}
    owners = packages_distributions()
    found = {_normal(owners.get(package, [package])[0]) for package in packages}
    assert sorted(found - installed - BROUGHT_BY_USERS - {"everwork"}) == []


@pytest.mark.parametrize("name", ["all", "client", "postgres", "redis", "server"])
def test_the_extras_that_were_needed_once_are_still_accepted(name: str) -> None:
    assert PROJECT["optional-dependencies"][name] == []


@pytest.mark.every_engine
def test_a_worker_process_loads_its_own_engine_and_no_server(engine_name: str, tmp_path: Path) -> None:
    url = url_of(engine_name, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, url], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    own = {"sqlite": "sqlite3", "postgres": "asyncpg", "redis": "redis"}[engine_name]
    assert set(done.stdout.split()) & OPTIONAL == {own}


def _imported(path: Path) -> set[str]:
    """The packages that a module imports, without the standard library; of `google` only protobuf is ours."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    packages = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    return {"protobuf" if name == "google" else name for name in packages}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
