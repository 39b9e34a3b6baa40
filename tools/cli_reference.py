"""The command line's reference in Markdown, read from the program: every command, argument, option and example.

python -m tools.cli_reference
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import typer

from everwork.cli.help import HelpText
from everwork.cli.main import PANELS, app

TITLE: Final = "Command reference"
INTRODUCTION: Final = (
    "Every command with its arguments and options, as `everwork COMMAND --help` prints them. "
    "How commands find the store, their JSON output and exit codes: [Command line](cli.md)."
)


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
    section: str
    """The heading that lists the command in `everwork --help`; empty for `everwork` itself."""
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


def page_markdown(page: CommandPage, level: int = 2) -> str:
    """One command as Markdown, below a heading of this level."""
    parts = [f"{'#' * level} {page.name}", _text(page.summary), *map(_text, page.description)]
    parts.append(f"```text\n{page.usage}\n```")
    if page.commands:
        parts.append("\n".join(f"- [`{name}`](#{anchor(name)})" for name in page.commands))
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
    """The whole reference as one Markdown page."""
    root, *rest = commands()
    sections = [page_markdown(page, 2 if page.name.count(" ") == 1 else 3) for page in rest]
    return "\n".join([f"# {TITLE}\n", f"{INTRODUCTION}\n", _contents(rest), *sections, page_markdown(root)])


def anchor(name: str) -> str:
    """The anchor of a heading, as Markdown generators build it."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower())


def missing_help(pages: list[CommandPage]) -> list[str]:
    """Commands, arguments and options without help, by name, and commands without an example."""
    found = [page.name for page in pages if not page.summary]
    found += [f"{page.name} (no example)" for page in pages if not page.examples]
    for page in pages:
        found += [f"{page.name} {one.names[0]}" for one in (*page.arguments, *page.options) if not one.help]
    return found


def _walk(command: Any, name: str, section: str = "") -> Iterator[CommandPage]:
    inner = {one: command.get_command(None, one) for one in getattr(command, "list_commands", lambda _: ())(None)}
    inner = {one: found for one, found in inner.items() if not found.hidden}
    yield _page(command, name, section, tuple(f"{name} {one}" for one in inner))
    for one, found in inner.items():
        yield from _walk(found, f"{name} {one}", section or _section(one))


def _section(command: str) -> str:
    return next(title for title, names in PANELS.items() if command in names)


def _page(command: Any, name: str, section: str, inner: tuple[str, ...]) -> CommandPage:
    text = HelpText.parse(command.help)
    context = typer.Context(command)
    shown = [one for one in command.get_params(context) if not one.hidden]
    return CommandPage(
        name=name,
        section=section,
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


def _contents(pages: list[CommandPage]) -> str:
    """The commands under the headings of `everwork --help`."""
    lines = []
    for title in PANELS:
        lines += [f"**{title}**", "", "| Command | |", "|---|---|"]
        own = [page for page in pages if page.section == title and page.name.count(" ") == 1]
        lines += [f"| [`{page.name}`](#{anchor(page.name)}) | {_cell(page.summary)} |" for page in own]
        lines.append("")
    return "\n".join(lines)


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


if __name__ == "__main__":
    sys.stdout.write(reference())
