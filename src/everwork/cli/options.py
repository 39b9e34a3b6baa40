"""Options that commands share, and parsers for their values; the codec validates the parsed values."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from everwork.core import checks
from everwork.core.instants import instant_ms
from everwork.exceptions import InvalidInput

ENGINE_VARIABLE: Final = "EVERWORK_ENGINE"
UNIT_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}

_config: Final[ContextVar[str | None]] = ContextVar("config", default=None)


def config_path() -> str | None:
    """The settings file that --config names."""
    return _config.get()


def _remember_config(path: str | None) -> str | None:
    _config.set(path)
    return path


EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine",
        "-e",
        metavar="URL",
        envvar=ENGINE_VARIABLE,
        help="Store: sqlite:///PATH, postgresql://... or redis://...",
        show_default="sqlite:///everwork.db",
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="PATH",
        help="Settings file.",
        show_default="everwork.toml, if it exists",
        callback=_remember_config,
        is_eager=True,
    ),
]
StoreUrl = Annotated[str | None, typer.Argument(metavar="URL", help="Store; the same as --engine.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="Job type.", show_default=False)]
JobKeys = Annotated[list[str], typer.Argument(metavar="KEY", help="Job keys.", show_default=False)]


class ListByDefault(TyperGroup):
    """A group whose default command is `list`: `everwork workers --json` is `everwork workers list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` if the arguments name no command."""
        is_named = bool(args) and not args[0].startswith("-")
        return super().parse_args(ctx, args if is_named or "--help" in args else ["list", *args])


def listing_app() -> typer.Typer:
    """A group whose default command is `list`."""
    epilog = "Without a command: list."
    return typer.Typer(cls=ListByDefault, epilog=epilog, add_completion=False, rich_markup_mode="rich")


def with_config(command: Any) -> Any:
    """Add --config to a command that works on an engine, or to all such commands of a group."""
    for inner in getattr(command, "commands", {}).values():
        with_config(inner)
    if any(option.envvar == ENGINE_VARIABLE for option in command.params):
        command.params.append(_config_option())
    return command


def _config_option() -> Any:
    """The --config option as typer builds it, which differs between versions of typer."""
    carrier = typer.Typer(add_completion=False)

    @carrier.command()
    def carry(config: ConfigFile = None) -> None: ...

    [option] = [one for one in typer.main.get_command(carrier).params if one.name == "config"]
    option.expose_value = False
    return option


def chosen_url(context: typer.Context, url: str | None, engine: str | None) -> str | None:
    """The store named by the argument URL or by --engine; either takes precedence over EVERWORK_ENGINE."""
    source = context.get_parameter_source("engine")
    is_typed = source is not None and source.name == "COMMANDLINE"
    if url is not None and is_typed and url != engine:
        raise InvalidInput("engine", "is set twice, as URL and with --engine; use one of them")
    return engine if url is None else url


def number(text: str | None) -> Any:
    """The number that a text stands for; otherwise the text itself, which the validation of the field rejects."""
    if text is None:
        return None
    return checks.typed(text)


def parse_time(field: str, text: object) -> datetime:
    """A time with a time zone, in 1970 or later."""
    allowed = "must be a time from 1970 to 9999 with a zone (RFC 3339), such as 2030-01-31T12:00:00Z"
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found < datetime(1970, 1, 1, tzinfo=UTC):
        raise InvalidInput(field, f"{allowed}, not {checks.shown(text)}")
    return found


def parse_instant(field: str, text: str, now_ms: int) -> int:
    """An instant: a duration from now, such as 90d, or a time with a time zone."""
    if (stretch := parse_duration_ms(text)) is not None:
        return now_ms + stretch
    try:
        return instant_ms(parse_time(field, text))
    except InvalidInput:
        allowed = "must be a duration such as 90d, 12h or 30m, or a time with a zone (RFC 3339)"
        raise InvalidInput(field, f"{allowed} such as 2030-01-31T12:00:00Z, not {checks.shown(text)}") from None


def parse_past_instant(field: str, text: str, now_ms: int) -> int:
    """An instant in the past: a duration ago, such as 12h, a day (UTC), or a time with a time zone."""
    if (stretch := parse_duration_ms(text)) is not None:
        return max(now_ms - stretch, 0)
    is_day = re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text)
    try:
        return instant_ms(parse_time(field, f"{text}T00:00:00Z" if is_day else text))
    except InvalidInput:
        allowed = "must be a duration such as 12h (ago), a day, or a time with a zone (RFC 3339)"
        raise InvalidInput(field, f"{allowed} such as 2030-01-31T12:00:00Z, not {checks.shown(text)}") from None


def parse_duration_ms(text: str) -> int | None:
    """A duration such as 90d, 12h, 30m or 45s; None if the text is not one."""
    found = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    return int(found[1]) * UNIT_MS[found[2]] if found else None


def parse_seconds(field: str, text: str | None) -> Any:
    """Seconds, given as a number or as a duration; the validation of the field checks the upper bound."""
    if text is not None and (duration := parse_duration_ms(text)) is not None:
        return duration // 1000
    found = number(text)
    if isinstance(found, str):
        allowed = "must be a number of seconds, or a duration such as 90s, 30m, 12h or 7d"
        raise InvalidInput(field, f"{allowed}, not {checks.shown(text)}")
    return found


def parse_pairs(field: str, texts: Sequence[str]) -> dict[str, str]:
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


def job_keys(texts: Sequence[str]) -> list[str]:
    """Job keys in the order in which they were typed, without duplicates."""
    if not all(texts):
        raise InvalidInput("key", "must not be empty")
    return list(dict.fromkeys(texts))


def require_terminal() -> None:
    """Refuse to ask for confirmation if there is no terminal."""
    if not sys.stdin.isatty():
        raise InvalidInput("yes", "--yes is required: there is no terminal to confirm on")
