"""The settings, from the dataclass that holds them and the command that takes them as flags."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import typer

from everwork.cli.main import app
from everwork.server.settings import PREFIX, Settings
from everwork.server.settings_reference import REFERENCE

FILE_ONLY: Final = ("types",)


def entries() -> str:
    """Every setting: meaning, type, default, allowed values, variable and flag."""
    flags = _flags()
    return "".join(_entry(one, flags.get(one.name)) for one in dataclasses.fields(Settings))


def default_of(field: dataclasses.Field[Any]) -> str:
    """The default as it would be written in the file; empty if there is none."""
    default = Settings().shown()[field.name]
    if default in (None, [], {}):
        return ""
    return ", ".join(f"`{one}`" for one in (default if isinstance(default, list) else [default]))


def _entry(field: dataclasses.Field[Any], flag: str | None) -> str:
    text = REFERENCE[field.name]
    variable = "" if field.name in FILE_ONLY else f"`{PREFIX}{field.name.upper()}`"
    facts = {
        "Type": type_of(field),
        "Default": default_of(field) or "not set",
        "Allowed": text.allowed,
        "Environment": variable or "none",
        "Flag of `everwork serve`": f"`{flag}`" if flag else "none",
    }
    lines = [f"- {name}: {value}\n" for name, value in facts.items()]
    return "".join([f"### `{field.name}`\n\n{text.meaning}\n\n", *lines, "\n"])


def type_of(field: dataclasses.Field[Any]) -> str:
    """The type in TOML terms."""
    default = getattr(Settings(), field.name)
    words = {"Path": "text", "tuple": "list of texts", "Declared": "tables", "int": "integer", "float": "number"}
    names = str(field.type).replace(" | None", "").split(" | ")
    if isinstance(default, Path):
        return "text"
    return " or ".join(dict.fromkeys(words.get(name.partition("[")[0], "text") for name in names))


def _flags() -> dict[str, str]:
    """The flags of `everwork serve` by setting."""
    serve = typer.main.get_command(app).get_command(None, "serve")  # type: ignore[attr-defined]
    return {one.name.removeprefix("no_"): ", ".join(one.opts) for one in serve.params}
