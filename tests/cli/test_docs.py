"""The page about the command line names what there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from everwork.cli.main import COMMANDS, Commands, app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()


def test_every_command_of_the_page_exists_and_every_command_is_on_it() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, Commands)
    named = set(re.findall(r"`everwork ([a-z]+)(?: ([a-z-]+))?", PAGE))
    for command, verb in named:
        found = root.get_command(None, command)
        assert found is not None, command
        assert not verb or verb in found.commands, f"{command} {verb}"
    assert {command for command, _ in named} == set(COMMANDS)


def test_the_page_names_everything_that_is_done_to_workers_and_triggers() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, Commands)
    wanted = {
        f"everwork {name} {verb}" for name in ("workers", "triggers") for verb in root.get_command(None, name).commands
    }
    assert [one for one in wanted if one not in PAGE] == []
