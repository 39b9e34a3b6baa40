"""A Django project on PostgreSQL and SQLite: the contract of task backends, and a worker process.

The cases are in `django_project/contract`; one process of each Django runs them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
import pytest

from tests.shared_servers import shared_url
from tests.stores import word_of
from tools import other_django

ROOT: Final = Path(__file__).resolve().parents[2]
PATHS: Final = ("examples/django_shop", "tests/foreign/django_project", "src")
SECONDS_MAX: Final = 110


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The URL of a database of its own; there is another one beside it, `..._other`."""
    server, name = shared_url("postgres"), f"django_{word_of(tmp_path)}"
    names = (name, f"{name}_other")
    with psycopg.connect(server, autocommit=True) as connection:
        for one in names:
            connection.execute(f"CREATE DATABASE {one}".encode())
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
        for one in names:
            connection.execute(f"DROP DATABASE {one} WITH (FORCE)".encode())


def test_the_contract_of_django_tasks_holds(database: str, tmp_path: Path) -> None:
    _hold(sys.executable, database, tmp_path)


def test_the_contract_holds_with_the_other_django(database: str, tmp_path: Path) -> None:
    python = other_django.find_environment()
    if python is None:
        pytest.skip(f"{other_django.NAME} WAS NOT TESTED: {other_django.ADVICE}")
    _hold(str(python), database, tmp_path)


def _hold(python: str, database: str, folder: Path) -> None:
    """Run the cases; what they print is the reason if one fails."""
    env = os.environ | {
        "CONTRACT_POSTGRES": database,
        "CONTRACT_OTHER": f"{database}_other",
        "CONTRACT_SQLITE": str(folder / "lite.db"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / path) for path in PATHS),
    }
    done = subprocess.run(
        [python, "-m", "contract"],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-20_000:]
    assert "\nOK\n" in done.stderr
