"""The files of a new project, which `everwork init` writes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

from everwork.exceptions import BadConfiguration, InvalidInput

NAMES: Final = ("jobs.py", "test_jobs.py", "everwork.toml", "compose.yaml", "README.md")


class Choice(NamedTuple):
    """The parts of the files that depend on the store."""

    url: str
    store: str
    """The store that the containers use."""
    password: str
    local: str
    """What the developer's machine needs for the store."""


CHOICES: Final = {
    "sqlite": Choice(
        "sqlite:///everwork.db",
        "PostgreSQL",
        "POSTGRES_PASSWORD",
        "Jobs are stored in `everwork.db` in this folder. The containers use PostgreSQL instead; only "
        "`EVERWORK_ENGINE` changes.",
    ),
    "postgres": Choice(
        "postgresql://localhost/everwork",
        "PostgreSQL",
        "POSTGRES_PASSWORD",
        "This needs a PostgreSQL server with a database `everwork` (`createdb everwork`). If yours is elsewhere, set "
        "`EVERWORK_ENGINE`,\nfor example to `postgresql://user:password@host/database`.",
    ),
    "redis": Choice(
        "redis://localhost:6379/0",
        "Redis",
        "REDIS_PASSWORD",
        "This needs a Redis server. If yours is elsewhere, set `EVERWORK_ENGINE`, for example to "
        "`redis://:password@host:6379/0`.",
    ),
}


def write_project(folder: Path, engine: str) -> None:
    """Write the files of a project, unless one of them already exists."""
    try:
        _write_project(folder, engine)
    except OSError as error:
        raise InvalidInput("folder", f"must be a folder that can be written: {folder}: {error.strerror}") from None


def _write_project(folder: Path, engine: str) -> None:
    there = [name for name in NAMES if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise BadConfiguration(
            f"{folder / there[0]} already exists; nothing was written. Use another folder: everwork init FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(_content(name, engine))


def _content(name: str, engine: str) -> str:
    choice = CHOICES[engine]
    template = "compose-redis.yaml" if (name, engine) == ("compose.yaml", "redis") else name
    text = files("everwork.cli").joinpath("project", f"{template}.txt").read_text("utf-8")
    for mark, value in (
        ("@URL@", choice.url),
        ("@STORE@", choice.store),
        ("@PASSWORD@", choice.password),
        ("@LOCAL@", choice.local),
    ):
        text = text.replace(mark, value)
    return text
