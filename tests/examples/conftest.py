"""Stores for the examples: a file, and a PostgreSQL database of one's own, as a reader would have them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.shared_servers import shared_url
from tests.stores import VirtualClock
from tests.views import SQL_ENGINES


@pytest.fixture(params=SQL_ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh store; on PostgreSQL a database, so that views are found without naming a schema."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'everwork.db'}"
        return
    server, name = shared_url("postgres"), f"cards_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}", query=""))
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that stands still at the present, so that commands with the real one can go on where the test stopped."""
    return VirtualClock(time.time_ns() // 1_000_000)
