"""The commands in the documentation and in help texts are commands of the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from everwork.cli.main import COMMANDS, UsageError, app
from tools.cli_reference import commands

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
EXAMPLES = [(page.name, line) for page in commands() for line in page.examples]
ENDS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1", "#", ")", "..."})
"""What ends a command in a shell."""


@pytest.mark.parametrize(("command", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_in_a_help_text_can_be_run(command: str, line: str) -> None:
    [arguments] = commands_in(line)
    require_parsed(arguments)
    assert command in (f"everwork {' '.join(arguments)}", "everwork") or arguments[0] == command.split()[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_code_blocks_of_a_page_can_be_run(page: Path) -> None:
    for line in code_lines(page.read_text("utf-8")):
        for arguments in commands_in(line):
            require_parsed(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_that_a_page_mentions_exists(page: Path) -> None:
    for mentioned in re.findall(r"`((?:[A-Z_]+=\S+ )*everwork [^`\n]+)`", without_code(page.read_text("utf-8"))):
        for arguments in commands_in(mentioned.replace("\\|", "|")):
            require_known(arguments)


def test_a_wrong_command_is_found() -> None:
    assert list(commands_in("EVERWORK_ENGINE=x everwork jobs list --limit 5 | head # everwork nonsense")) == [
        ["jobs", "list", "--limit", "5"]
    ]
    assert list(code_lines("text\n\n    everwork one\n\n```bash\neverwork two \\\n  --three\n```\n")) == [
        "everwork one",
        "everwork two --three",
    ]
    for wrong in (["jobs", "explode"], ["nonsense"], ["jobs", "list", "--nonsense"], ["jobs", "get"]):
        with pytest.raises(UsageError):
            require_parsed(wrong)
    with pytest.raises(AssertionError, match="--nonsense"):
        require_known(["jobs", "list", "--nonsense"])


# Reading ----------------------------------------------------------------------------------------------


FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def code_lines(text: str) -> Iterator[str]:
    """Lines of shell code, fenced and indented, with continued ones joined."""
    fenced = [block for _, language, block in FENCE.findall(text) if language in ("", "bash", "sh", "console", "shell")]
    indented = re.findall(r"^    (\S.*)$", without_code(text), re.MULTILINE)
    joined = re.sub(r" *\\\n\s*", " ", "\n".join([*indented, *fenced]))
    yield from (line.strip() for line in joined.splitlines() if line.strip())


def without_code(text: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", text)


def commands_in(line: str) -> Iterator[list[str]]:
    """The arguments of each `everwork` that a shell would run; not output (`everwork: ...`) nor `flask everwork`."""
    found = re.search(r"(?:^|[$(\s]|&& |\| )everwork +(?![:/])(\S.*)$", line)
    is_flask = re.match(r"(?:\$ )?flask ", line)
    if found is None or is_flask or not re.match(rf"(?:{'|'.join(COMMANDS)}|--help|--version)\b", found[1]):
        return
    text = found[1].partition(" # ")[0].replace(')"', " )").replace("$(", " ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    arguments: list[str] = []
    for word in lexer:
        if word in ENDS or word.startswith((">", "2>")):
            break
        arguments.append(word)
    yield arguments


# Checking ---------------------------------------------------------------------------------------------


def require_parsed(arguments: list[str]) -> None:
    """The program accepts these arguments; nothing is run."""
    command, rest = _found(arguments)
    if not {"--help", "--version"} & set(rest):
        command.make_context("everwork", list(rest))


def require_known(arguments: list[str]) -> None:
    """The command exists, and so do its options."""
    command, rest = _found(arguments)
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "--"}
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"everwork {' '.join(arguments)}: {word}"


def _found(arguments: list[str]) -> tuple[Any, list[str]]:
    """The command that the arguments lead to, and what is left of them."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "list_commands") and rest and not rest[0].startswith("-"):
        inner = command.get_command(None, rest[0])
        if inner is None:
            raise typer.BadParameter(f"no such command: everwork {' '.join(arguments)}")
        command = inner
        rest.pop(0)
    if hasattr(command, "list_commands") and "list" in command.list_commands(None):
        command = command.get_command(None, "list")
    return command, rest
