"""Options that commands share, and how their texts become values; intake checks what they may be."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from everwork.core import checks
from everwork.exceptions import InvalidInput

EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "-e",
        metavar="URL",
        envvar="EVERWORK_ENGINE",
        help="The engine.",
        show_default="sqlite:///everwork.db",
    ),
]
StoreUrl = Annotated[str | None, typer.Argument(metavar="[URL]", help="The engine, as --engine.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JobKeys = Annotated[list[str], typer.Argument(metavar="KEY...", help="Job keys.", show_default=False)]


def the_store(context: typer.Context, url: str | None, engine: str | None) -> str | None:
    """The one store that is meant, by URL or by --engine; either goes before EVERWORK_ENGINE."""
    source = context.get_parameter_source("engine")
    is_typed = source is not None and source.name == "COMMANDLINE"
    if url is not None and is_typed and url != engine:
        raise InvalidInput("engine", "is named twice, as URL and by --engine; name one")
    return engine if url is None else url


def number(text: str | None) -> Any:
    """A number, if the text is one; otherwise the text, which the check of the field refuses by name."""
    if text is None:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def moment(field: str, text: object) -> datetime:
    """A time with its zone, from 1970 on."""
    allowed = "must be a time from 1970 to 9999 with a zone (RFC 3339), such as 2030-01-31T12:00:00Z"
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found < datetime(1970, 1, 1, tzinfo=UTC):
        raise InvalidInput(field, f"{allowed}, not {checks.shown(text)}")
    return found


def pairs(field: str, texts: Sequence[str]) -> dict[str, str]:
    """`name=value` texts as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        name, is_pair, value = text.partition("=")
        if not name or not is_pair:
            raise InvalidInput(field, f"must be NAME=VALUE, not {checks.shown(text)}")
        if name in found:
            raise InvalidInput(field, f"must name {checks.shown(name)} only once")
        found[name] = value
    return found


def job_keys(texts: Sequence[str]) -> list[int]:
    """Job keys, each once."""
    return list(dict.fromkeys(checks.job_key(text) for text in texts))
