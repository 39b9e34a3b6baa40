"""The command-line reference in Markdown, generated from the program: every command, argument, option and example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from everwork.cli.help import HelpText
from everwork.cli.main import app
from tools.reference.anchors import slug


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or an option."""

    names: tuple[str, ...]
    """`--engine` and `-e` of an option, the metavar of an argument."""
    metavar: str
    """What an option's value looks like, such as `URL`; empty for a flag."""
    help: str
    default: str | None
    env: str | None
    required: bool
    repeatable: bool
    group: str | None
    """The heading in the terminal's help, if the options are grouped."""


@dataclass(frozen=True, slots=True)
class CommandPage:
    """A command, or a group of commands."""

    name: str
    """As it is typed: `everwork jobs list`."""
    summary: str
    description: tuple[str, ...]
    """Paragraphs after the summary."""
    usage: str
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]
    examples: tuple[str, ...]
    commands: tuple[str, ...]
    """The names of a group's commands, as they are typed."""


def commands() -> list[CommandPage]:
    """Every command in the order of the help, each group before its commands; the first is `everwork` itself."""
    return list(_walk(typer.main.get_command(app), "everwork"))


def page_markdown(page: CommandPage) -> str:
    """One command as Markdown."""
    parts = [f"## {page.name}", _text(page.summary), *map(_text, page.description)]
    parts.append(f"```text\n{page.usage}\n```")
    if page.commands:
        parts.append("\n".join(f"- [`{name}`](#{slug(name)})" for name in page.commands))
    if page.arguments:
        parts.append(_table("Argument", page.arguments))
    groups = list(dict.fromkeys(option.group for option in page.options))
    for group in groups:
        parts.append(f"**{group or 'Options'}**")
        parts.append(_table("Option", [option for option in page.options if option.group == group]))
    if page.examples:
        parts.append("**Examples**" if len(page.examples) > 1 else "**Example**")
        parts.append("```bash\n" + "\n".join(page.examples) + "\n```")
    return "\n\n".join(parts) + "\n"


def reference() -> str:
    """Every command, one after the other."""
    return "\n".join(map(page_markdown, commands()))


def missing_help(pages: list[CommandPage]) -> list[str]:
    """The names of commands, arguments and options without help, and of commands without an example."""
    found = [page.name for page in pages if not page.summary]
    found += [f"{page.name} (no example)" for page in pages if not page.examples]
    for page in pages:
        found += [f"{page.name} {one.names[0]}" for one in (*page.arguments, *page.options) if not one.help]
    return found


def _walk(command: Any, name: str) -> Iterator[CommandPage]:
    inner = {one: command.get_command(None, one) for one in getattr(command, "list_commands", lambda _: ())(None)}
    inner = {one: found for one, found in inner.items() if not found.hidden}
    yield _page(command, name, tuple(f"{name} {one}" for one in inner))
    for one, found in inner.items():
        yield from _walk(found, f"{name} {one}")


def _page(command: Any, name: str, inner: tuple[str, ...]) -> CommandPage:
    text = HelpText.parse(command.help)
    context = typer.Context(command)
    shown = [one for one in command.get_params(context) if not one.hidden]
    return CommandPage(
        name=name,
        summary=text.summary,
        description=text.paragraphs + ((command.epilog,) if command.epilog else ()),
        usage=" ".join([name, *command.collect_usage_pieces(context)]),
        arguments=tuple(_parameter(one) for one in shown if one.param_type_name == "argument"),
        options=tuple(_parameter(one) for one in shown if one.param_type_name == "option"),
        examples=text.examples,
        commands=inner,
    )


def _parameter(one: Any) -> Parameter:
    is_option = one.param_type_name == "option"
    names = (*one.opts, *one.secondary_opts) if is_option else (one.metavar,)
    return Parameter(
        names=tuple(names),
        metavar=(one.metavar or "") if is_option else "",
        help=HelpText.parse(one.help or "").summary,
        default=_default(one),
        env=one.envvar if isinstance(one.envvar, str) else None,
        required=one.required,
        repeatable=bool(getattr(one, "multiple", False)) or one.nargs != 1,
        group=getattr(one, "rich_help_panel", None),
    )


def _default(one: Any) -> str | None:
    if isinstance(one.show_default, str):
        return one.show_default
    is_shown = one.show_default and one.default not in (None, "", [], ()) and not getattr(one, "is_flag", False)
    return str(one.default) if is_shown else None


def _table(title: str, parameters: tuple[Parameter, ...] | list[Parameter]) -> str:
    return "\n".join([f"| {title} | Description |", "|---|---|", *map(_row, parameters)])


def _row(one: Parameter) -> str:
    value = f" {one.metavar}" if one.metavar else ""
    names = ", ".join(f"`{name}{value if name == one.names[0] else ''}`" for name in one.names)
    facts = ["Required."] if one.required else []
    facts += [f"Default: {_default_text(one.default)}."] if one.default else []
    facts += [f"Environment: `{one.env}`."] if one.env else []
    return f"| {names.replace('|', chr(92) + '|')} | {' '.join([_cell(one.help), *facts])} |"


def _default_text(default: str) -> str:
    """A value as code; a default in words, such as "all tenants", as text."""
    return _cell(default) if " " in default else f"`{default}`"


def _text(text: str) -> str:
    """Plain text as Markdown: characters that Markdown would interpret are escaped."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", text)


def _cell(text: str) -> str:
    return _text(text).replace("|", r"\|")
