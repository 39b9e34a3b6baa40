"""Help texts: plain docstrings (a summary, paragraphs, examples), laid out for the terminal and the reference."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any, Final, NamedTuple

import typer

FIRST: Final = ("list", "show", "get", "create")
"""Commands that a group lists first."""
COMMON: Final = ("config", "as_json", "help")
"""Options that most commands have; the help lists them last."""
COMMON_TITLE: Final = "Common options"


class HelpText(NamedTuple):
    """The help of a command in its parts."""

    summary: str
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> HelpText:
        """Split a docstring, or a text that `for_terminal` returned."""
        plain = re.sub(r"\[/?(?:bold|not dim)\]", "", cleandoc(text)).replace("\\[", "[")
        examples: list[str] = []
        paragraphs: list[str] = []
        for paragraph in filter(None, plain.split("\n\n")):
            first, *rest = (line.strip() for line in paragraph.splitlines())
            if first in ("Example:", "Examples:"):
                examples += rest
            else:
                paragraphs.append(" ".join([first, *rest]))
        return cls("".join(paragraphs[:1]), tuple(paragraphs[1:]), tuple(examples))

    def for_terminal(self) -> str:
        """Each paragraph as one line, which the terminal wraps; the examples indented, ready to copy."""
        parts = [_escaped(text) for text in (self.summary, *self.paragraphs)]
        if self.examples:
            heading = "[bold]Example:[/bold]" if len(self.examples) == 1 else "[bold]Examples:[/bold]"
            parts.append("\n".join([heading, *(f"[not dim]  {_escaped(line)}[/not dim]" for line in self.examples)]))
        return "\n\n".join(parts)


def lay_out(command: Any, inner: bool = True) -> Any:
    """Lay out the help of a command and, with `inner`, of the commands of a group."""
    if inner and (commands := getattr(command, "commands", None)):
        for one in commands.values():
            lay_out(one)
        command.commands = {name: commands[name] for name in sorted(commands, key=_rank)}
    text = HelpText.parse(command.help or "")
    command.help, command.short_help = text.for_terminal(), _escaped(text.summary)
    options = [*command.params, command.get_help_option(typer.Context(command))]
    has_common = sum(map(is_common, options)) > 1
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""  # Otherwise, newer versions of typer show <bool>.
        if has_common and is_common(option):
            option.rich_help_panel = COMMON_TITLE
    command.params.sort(key=is_common)
    _lay_out_usage(command)
    return command


def is_common(option: Any) -> bool:
    """Whether most commands have this option; `everwork init --engine` is a different option of the same name."""
    return option.name in COMMON or "-e" in option.opts


def _lay_out_usage(command: Any) -> None:
    """Make the usage line the same in all versions of typer: `everwork jobs get [OPTIONS] KEY`."""
    pieces = ["[OPTIONS]"]
    for one in command.params:
        if one.param_type_name == "argument" and not one.hidden:
            one.metavar = (one.metavar or one.name.upper()) + ("" if one.nargs == 1 else "...")
            one.display_type_rich = lambda ctx: None  # noqa: ARG005 - <str> says nothing to people
            pieces.append(one.metavar if one.required else f"[{one.metavar}]")
    if hasattr(command, "list_commands"):
        pieces.append("COMMAND [ARGS]...")
    command.collect_usage_pieces = lambda ctx: pieces  # noqa: ARG005 - the signature is typer's


def _rank(name: str) -> int:
    """The sort key of a command: commands that only read come first, and the others keep their order."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _escaped(text: str) -> str:
    """Escape brackets that rich would take for markup."""
    return re.sub(r"\[(?=[a-z#/@])", r"\\[", text)
