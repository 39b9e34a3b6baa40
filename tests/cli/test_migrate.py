"""everwork migrate: the schema is brought up to date before programs start, and can be looked at."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """A store that nobody has opened yet."""
    return url_of(engine_name, tmp_path)


def test_a_store_is_created_once(cli: Cli, url: str) -> None:
    first, again = cli("migrate", url, "--json").json, cli("migrate", url, "--json").json
    newest = first["newest"]
    assert newest >= 1
    assert (first["before"], first["after"]) == (None, newest)
    assert (again["before"], again["after"]) == (newest, newest)


def test_a_check_creates_nothing(cli: Cli, url: str) -> None:
    for _ in range(2):
        answer = cli("migrate", url, "--check")
        assert answer.code == 1
        assert answer.complaint.endswith("run: everwork migrate")
        assert "no schema" in answer.complaint


def test_a_check_of_a_current_store_is_content(cli: Cli, url: str) -> None:
    cli("migrate", url)
    answer = cli("migrate", "--check", EVERWORK_ENGINE=url)
    assert (answer.code, answer.err) == (0, "")
    assert "is current" in answer.out


def test_people_are_told_what_was_done(cli: Cli) -> None:
    assert cli("migrate").out == "sqlite:///everwork.db: created, schema version 6\n"
    assert cli("migrate").out == "sqlite:///everwork.db: schema version 6 is current, nothing to do\n"


def test_an_old_store_is_told_and_brought_up_to_date(cli: Cli) -> None:
    with closing(sqlite3.connect(cli.file)) as file, file:
        file.execute("CREATE TABLE ew_schema (version INTEGER PRIMARY KEY)")
    assert cli("migrate", "--check").code == 1
    assert cli("migrate").code == 0
    assert cli("migrate", "--check").code == 0


def test_a_store_of_a_newer_program_is_refused(cli: Cli) -> None:
    cli("migrate")
    with closing(sqlite3.connect(cli.file)) as file, file:
        file.execute("INSERT INTO ew_schema VALUES (99)")
    for arguments in (["migrate"], ["jobs", "list"]):
        answer = cli(*arguments)
        assert answer.code == 2
        assert "has schema version 99, but this program supports up to 6; upgrade Everwork" in answer.complaint
    answer = cli("migrate", "--check")
    assert answer.code == 1
    assert "schema version 99" in answer.complaint


def test_passwords_are_not_shown(cli: Cli) -> None:
    answer = cli("migrate", "postgresql://ann:s3cret@127.0.0.1:1/jobs?password=s3cret2")
    assert answer.code == 2
    assert "s3cret" not in answer.complaint
