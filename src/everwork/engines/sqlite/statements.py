"""The SQL of this engine: one file per operation of the contract, each statement under its name."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(operation: str) -> dict[str, str]:
    """The statements of `sql/<operation>.sql` by name."""
    text = (files(__package__) / "sql" / f"{operation}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return {name: _bare(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _bare(body: str) -> str:
    """A statement without its comments."""
    lines = [line for line in body.strip().splitlines() if not line.startswith("--")]
    return "\n".join(lines).rstrip(";")
