"""Engines of ill will on the command line: one line, exit code 2, at once."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

COMMANDS = pytest.mark.parametrize("command", ["jobs create x", "jobs list", "stats", "up --demo"])


@COMMANDS
def test_a_url_that_cannot_be_read_is_told(cli: Cli, command: str) -> None:
    answer = cli(*command.split(), "--engine", "sqlite://[x/y")
    assert answer.complaint.startswith("engine URL: cannot be read: ")
    assert (answer.code, list(cli.folder.iterdir())) == (2, [])


@COMMANDS
@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_regular_file_is_refused_at_once(cli: Cli, command: str, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else cli.file
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    answer = cli(*command.split(), "--engine", f"sqlite:///{path}")
    assert answer.complaint.startswith(f"cannot open {path}: it is ")
    assert answer.code == 2


def change(cli: Cli, *statements: str) -> None:
    """Change a file with a job in it by hand."""
    cli("jobs", "create", "x")
    with closing(sqlite3.connect(cli.file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@COMMANDS
def test_a_file_without_its_version_is_refused(cli: Cli, command: str) -> None:
    change(cli, "DROP TABLE ew_schema")
    answer = cli(*command.split(), "--engine", f"sqlite:///{cli.file}")
    assert str(cli.file) in answer.complaint
    assert answer.code == 2


@COMMANDS
def test_a_version_that_is_a_text_is_told(cli: Cli, command: str) -> None:
    change(cli, "DROP TABLE ew_schema", "CREATE TABLE ew_schema (version)", "INSERT INTO ew_schema VALUES ('two')")
    answer = cli(*command.split(), "--engine", f"sqlite:///{cli.file}")
    assert "ew_schema is damaged: 'two' is not a version" in answer.complaint
    assert answer.code == 2
