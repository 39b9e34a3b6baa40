"""The SQL and Lua files of the engines: one per operation of the contract, with the same names and a header."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final

import pytest

from everwork import engines as package
from everwork.engines.contract import Engine
from everwork.engines.postgres.create import KEYS

ENGINES: Final = Path(inspect.getfile(package)).parent
FOLDERS: Final = {"sqlite": "sqlite/sql", "postgres": "postgres/sql", "redis": "redis/lua"}
SHARED_PARTS: Final = ("postgres/functions", "redis/lua/parts")
"""What several operations are made of; not operations themselves."""

REGISTRY: Final = (
    "pause", "set_policy", "add_group", "drop_group", "types", "register", "unregister", "registered",
    "last_registered", "take_turn", "open_breaker", "reset_breaker", "subscribe", "trigger_marks",
    "delete_type", "forget_types",
)  # fmt: skip
WITHOUT_FILE: Final = {
    "open": "the migrations, or what a store is met with",
    "close": "nothing is asked",
    "fresh": "nothing is asked",
    "is_remote": "known from the engine",
    "has_real_clock": "known from the engine",
    "durability": "known from the settings",
    "retention": "known from the core",
    "health": "settings of the store",
    "schema": "one number, read before anything may be there",
    "mark": "kept in the process",
    "mark_finished": "kept in the process",
    "wait": "the way in which the store wakes",
    "wait_finished": "the way in which the store wakes",
    "create_in": "create, in the caller's transaction",
    "complete_in": "complete or settle, in the caller's transaction",
    "history": "get, which reads what belongs to a job",
    **dict.fromkeys(REGISTRY, "registry"),
}
"""The operations of the contract that need no file of their own, and why."""
MISSING: Final[dict[str, dict[str, str]]] = {
    "sqlite": {
        "now": "the host's clock",
        "cancel": "written by what shared.sql has for every job that finishes",
        "reschedule": "written by what shared.sql has for every pending job",
        "set_priority": "written by what shared.sql has for every pending job",
    },
    "postgres": {},
    "redis": {},
}
"""The operations that one engine makes of what others have, and of what."""
FURTHER: Final = {
    "sqlite": {
        "registry": "its operations",
        "shared": "what several operations write",
        "recount": "what runs, counted anew by set_policy and sweep",
        "unpark": "the demands of waiting workers, which activate parks and create meets",
        "clock": "what every transaction does when the host's clock has jumped",
    },
    "postgres": {"registry": "its operations", "complete": "one document that every driver can send"},
    "redis": {
        "registry": "its operations",
        "open": "the version of the store, which has no migrations",
        "decide": "what the core must know before settle, because a script cannot wait for it",
        "lapse": "what the core has decided on the lapsed leases that sweep has found",
        "history": "a list of its own, which get need not read",
        "wait": "asks to be woken, in the step that looks for work",
        "unpark": "withdraws what activate has parked",
    },
}
"""The files beside those of the operations, and why."""


def files_of(folder: str) -> list[Path]:
    return sorted(file for file in (ENGINES / folder).iterdir() if file.suffix in (".sql", ".lua"))


@pytest.mark.parametrize("engine", FOLDERS)
def test_the_files_are_the_operations_of_the_contract_and_what_is_said_here(engine: str) -> None:
    operations = Engine.__abstractmethods__
    assert set(WITHOUT_FILE) <= operations
    expected = (operations - WITHOUT_FILE.keys() - MISSING[engine].keys()) | FURTHER[engine].keys()
    assert {file.stem for file in files_of(FOLDERS[engine])} == expected


def header_of(file: Path) -> str:
    return "\n".join(re.findall(r"\A(?:--.*\n)+", file.read_text()))


@pytest.mark.parametrize(
    "file",
    [file for folder in FOLDERS.values() for file in files_of(folder)],
    ids=lambda file: "/".join(file.parts[-3:]),
)
def test_each_file_says_its_purpose_inputs_and_returns(file: Path) -> None:
    header = header_of(file)
    assert re.match(r"-- Purpose: \S.*", header), "no purpose"
    assert re.search(r"\bInputs\b.*\S", header), "no inputs"
    assert re.search(r"\b[Rr]eturns\b.*\S", header), "no returns"


@pytest.mark.parametrize(
    "file", [file for folder in SHARED_PARTS for file in files_of(folder)], ids=lambda file: file.name
)
def test_each_part_that_operations_share_says_its_purpose_and_what_it_needs(file: Path) -> None:
    header = header_of(file)
    assert re.match(r"-- Purpose: \S.*", header), "no purpose"
    assert re.search(r"\bInputs\b.*\S", header), "no inputs"


def test_the_header_of_a_create_says_what_fields_are_called_in_its_document() -> None:
    header, _, _ = (ENGINES / "postgres/functions/create.sql").read_text("utf-8").partition("\n\n")
    assert [name for name, letter in KEYS.items() if f'"{letter}": {name}' not in header] == []


@pytest.mark.parametrize("name", ["sqlite", "postgres"])
def test_every_version_of_a_schema_has_one_migration(name: str) -> None:
    numbers = sorted(int(path.name[:4]) for path in (ENGINES / name / "migrations").glob("*.sql"))
    assert numbers == list(range(1, len(numbers) + 1))
