"""Shell completion: the scripts of the shells, and the words that can come next."""

from __future__ import annotations

import ast
import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from everwork.cli.options import ListByDefault

STORE_SECONDS: Final = 1.0
"""How long the store can take to list its types while a user is waiting at the prompt."""
SHELLS: Final = ("bash", "zsh", "fish")

_BASH: Final = r"""# Completion of everwork for bash. In ~/.bashrc:  eval "$(everwork completion bash)"
_everwork() {
    local typed=${COMP_LINE:0:COMP_POINT} word
    typed=${typed##* }
    COMPREPLY=()
    while IFS= read -r word; do
        word=${word%%$'\t'*}
        # Bash replaces only what follows the last colon, as in module:app.
        [[ $typed == *:* ]] && word=${word#"${typed%"${typed##*:}"}"}
        # Types are names from the store: quoted, none of them can be a command.
        COMPREPLY+=("$(printf %q "$word")")
    done < <("$1" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _everwork everwork
"""
_ZSH: Final = r"""#compdef everwork
# Completion of everwork for zsh. In ~/.zshrc, after compinit:  eval "$(everwork completion zsh)"
_everwork() {
    local -a lines words_only shown
    lines=("${(@f)$("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in $lines; do
        words_only+=("${line%%$'\t'*}")
        shown+=("${${line/$'\t'/  -- }%  -- }")
    done
    if (( ${#words_only} )); then
        compadd -l -d shown -a words_only
    else
        _files
    fi
}
compdef _everwork everwork
"""
_FISH: Final = r"""# Completion of everwork for fish: save it as ~/.config/fish/completions/everwork.fish
function __everwork_words
    set -l typed (commandline -opc)
    set -l last (commandline -ct)
    $typed[1] completion words -- $typed[2..-1] "$last" 2>/dev/null
end
complete --command everwork --arguments '(__everwork_words)'
"""


def script(shell: str) -> str:
    """The script that a shell loads."""
    return {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]


class Line(NamedTuple):
    """The parsed words: the command they lead to, and what it expects next."""

    command: Any
    option: Any | None
    """An option whose value comes next."""
    arguments: int
    """How many arguments of the command have been typed."""
    values: dict[str, str]
    """Options with their values, by the option's name."""


def candidates(root: Any, words: list[str]) -> list[tuple[str, str]]:
    """The words that can replace the last one, each with its help, which can be empty."""
    *typed, last = _joined(words) or [""]
    line = _read(root, typed)
    if line is None:
        return []
    return [(word, text) for word, text in _expected(line, last) if word.startswith(last)]


def _joined(words: list[str]) -> list[str]:
    """The words as typed, because bash splits them at colons and equals signs. `--name=value` counts as two words."""
    joined: list[str] = []
    for word in words:
        if word == "=" and joined and joined[-1].startswith("-"):
            joined.append("")
        elif joined and (word in (":", "=") or joined[-1].endswith((":", "=")) or _is_empty_value(joined)):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _is_empty_value(joined: list[str]) -> bool:
    """Whether an equals sign has just ended the name of an option."""
    return len(joined) > 1 and joined[-1] == "" and joined[-2].startswith("-")


def _read(root: Any, typed: list[str]) -> Line | None:
    """Follow the words to a command; None if there is no such command."""
    line = Line(root, None, 0, {})
    for word in typed:
        if line.option is not None:
            line = line._replace(option=None, values={**line.values, line.option.name: word})
        elif word.startswith("-"):
            line = _listing(line)
            found = next((one for one in line.command.params if word in one.opts), None)
            line = line._replace(option=None if found is None or found.is_flag else found)
        elif hasattr(line.command, "get_command"):
            command = line.command.get_command(None, word)
            if command is None:
                return None
            line = line._replace(command=command)
        else:
            line = line._replace(arguments=line.arguments + 1)
    return line


def _listing(line: Line) -> Line:
    """The line with the command that its options belong to: `list`, in a group that has it as the default command."""
    command = line.command
    return line._replace(command=command.commands["list"]) if isinstance(command, ListByDefault) else line


def _expected(line: Line, last: str) -> Iterator[tuple[str, str]]:
    if line.option is not None:
        yield from _values(line.option, line)
    elif last.startswith("-"):
        for one in _listing(line).command.params:
            if one.param_type_name == "option" and one.name not in line.values:
                yield from ((text, one.help or "") for text in one.opts if text.startswith("--"))
        yield "--help", "Show the options and examples."
    elif hasattr(line.command, "list_commands"):
        loaded = getattr(line.command, "commands", {})
        for name in line.command.list_commands(None):
            # Loading a command just to show its help would be too slow.
            yield name, loaded[name].get_short_help_str() if name in loaded else ""
    else:
        arguments = [one for one in line.command.params if one.param_type_name == "argument"]
        if arguments and (line.arguments < len(arguments) or arguments[-1].nargs == -1):
            yield from _values(arguments[min(line.arguments, len(arguments) - 1)], line)


def _values(parameter: Any, line: Line) -> Iterator[tuple[str, str]]:
    """The values of an option or an argument, if they are few and known."""
    find = _FINDERS.get(parameter.name)
    if find is not None:
        yield from ((word, "") for word in find(line))


def _states(_: Line) -> list[str]:
    from everwork.core.states import State  # noqa: PLC0415 - loaded only if it is needed

    return [*(state.label for state in State), "activatable"]


def _types(line: Line) -> list[str]:
    """The types of the store, if it answers quickly; a missing store is not created."""
    from everwork.cli.session import open_store  # noqa: PLC0415 - loaded only if it is needed
    from everwork.server.settings import engine_url  # noqa: PLC0415

    async def read() -> None:
        url = engine_url(line.values.get("config"), os.environ, line.values.get("engine"))
        async with open_store(url) as engine:
            found.extend(sorted(one.type for one in await engine.types()))

    def run() -> None:
        with suppress(Exception):
            asyncio.run(read())

    found: list[str] = []
    logging.disable()  # Nothing else may appear at the prompt.
    reading = threading.Thread(target=run, daemon=True)
    reading.start()
    reading.join(STORE_SECONDS)
    return [*found]


def _targets(line: Line) -> list[str]:
    """`module:name` of everything in the folder that looks like an application or a manager; nothing is imported."""
    if all(one.name != "app_dir" for one in line.command.params):
        return []
    folder = Path(line.values.get("app_dir", "."))
    found: list[str] = []
    for file in sorted(folder.glob("*.py"))[:200]:
        with suppress(SyntaxError, ValueError, OSError):
            for node in ast.parse(file.read_bytes()).body:
                if isinstance(node, ast.Assign) and _makes_a_program(node.value):
                    found += [f"{file.stem}:{one.id}" for one in node.targets if isinstance(one, ast.Name)]
    return found


def _makes_a_program(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name in ("Everwork", "ProcessManager")


_FINDERS: Final[dict[str, Callable[[Line], list[str]]]] = {
    "type": _types,
    "types": _types,
    "state": _states,
    "target": _targets,
    "shell": lambda _: list(SHELLS),
    "log_level": lambda _: ["debug", "info", "warning", "error"],
    "log_format": lambda _: ["console", "json"],
    "order": lambda _: ["newest", "due", "failed"],
}
"""Functions that find the values of a parameter, by the parameter's name."""
