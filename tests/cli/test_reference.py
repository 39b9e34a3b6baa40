"""The generated reference of the command line has every command and option, each with its help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import typer

from everwork.cli.main import COMMANDS, app
from tools.cli_reference import CommandPage, Parameter, commands, missing_help, page_markdown, reference
from tools.reference.anchors import slug

PAGES = commands()
SUMMARY_CHARS_MAX = 62
EXAMPLE_CHARS_MAX = 76
"""What fits on one line of a terminal with 80 columns."""


def test_every_command_of_the_program_has_a_page() -> None:
    assert [page.name for page in PAGES] == [" ".join(["everwork", *path]) for path in _paths()]
    assert {page.name.split()[1] for page in PAGES[1:]} == set(COMMANDS)


def test_every_command_argument_and_option_has_a_help_text_and_every_command_an_example() -> None:
    assert missing_help(PAGES) == []


def test_what_has_no_help_is_named() -> None:
    option = Parameter(("--color", "-c"), "NAME", "", None, None, required=False, repeatable=False, group=None)
    page = replace(PAGES[0], name="everwork paint", summary="", examples=(), options=(option,))
    assert missing_help([page]) == ["everwork paint", "everwork paint (no example)", "everwork paint --color"]


def test_every_command_and_every_option_is_in_the_reference() -> None:
    text = reference()
    for page in PAGES:
        section = page_markdown(page)
        assert section in text, page.name
        for one in (*page.arguments, *page.options):
            assert all(f"`{name}" in section.replace("\\|", "|") for name in one.names), f"{page.name} {one.names}"
        assert all(example in section for example in page.examples), page.name


def test_every_link_in_the_reference_leads_to_a_heading() -> None:
    text = reference()
    headings = {slug(page.name) for page in PAGES}
    linked = {part.partition(")")[0] for part in text.split("](#")[1:]}
    assert linked
    assert linked <= headings


def test_an_option_is_shown_with_its_value_default_and_environment_variable() -> None:
    page = _page("everwork jobs list")
    section = page_markdown(page)
    assert "| `--limit NUMBER` | " in section
    assert "Default: `50`." in section
    assert "Environment: `EVERWORK_ENGINE`." in section
    assert "`--json`" in section


def test_summaries_and_examples_fit_on_one_line_of_a_terminal() -> None:
    assert [page.name for page in PAGES if len(page.summary) > SUMMARY_CHARS_MAX] == []
    assert [one for page in PAGES for one in page.examples if len(one) > EXAMPLE_CHARS_MAX] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_help_text_is_sentences(page: CommandPage) -> None:
    texts = [page.summary, *page.description, *(one.help for one in (*page.arguments, *page.options))]
    assert [text for text in texts if not text.endswith((".", ":"))] == []


def _page(name: str) -> CommandPage:
    return next(page for page in PAGES if page.name == name)


def _paths(command: Any = None, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found: Any = typer.main.get_command(app) if command is None else command
    inner = found.list_commands(None) if hasattr(found, "list_commands") else []
    return [path, *(one for name in inner for one in _paths(found.get_command(None, name), (*path, name)))]
