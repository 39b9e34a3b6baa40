"""Nothing that users can name lacks its documentation: what does is named here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from everwork.server.http.app import OPERATIONS
from tests.docs.pages import DOCS, ROOT
from tests.source_texts import constant_texts
from tools import cli_reference
from tools.reference import errors, metrics, python
from tools.reference.extension import MARKER, with_generated

REFERENCE: Final = DOCS / "reference"


def built(page: str) -> str:
    """A page of the reference with its generated parts."""
    return with_generated((REFERENCE / page).read_text("utf-8"), page)


def test_every_metric_of_the_code_is_documented() -> None:
    page = built("metrics.md")
    known = {one.name for family in metrics.exported().values() for one in family}
    named = {name for text in constant_texts() for name in re.findall(r"\beverwork_[a-z_]+\b", text)}
    series = {
        name for name in named if re.match(r"everwork_(.+_)?(total|seconds|bytes|items|up|state|info|jobs)$", name)
    }
    assert {name for name in series if name not in known and f"{name}_total" not in known} <= NOT_METRICS
    assert [name for name in known if f"`{name}`" not in page] == []
    assert [one.name for family in metrics.exported().values() for one in family if len(one.help) < 8] == []


NOT_METRICS: Final = {"everwork_jobs"}
"""Names of other things: a table."""


def test_every_command_and_option_is_documented() -> None:
    page = built("commands.md")
    commands = cli_reference.commands()
    assert [one.name for one in commands if f"## {one.name}\n" not in page] == []
    assert cli_reference.missing_help(commands) == []


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.id)
def test_every_rest_operation_is_documented(operation: Any) -> None:
    heading = f"`{operation.method} {operation.path}` (`{operation.id}`)"
    section = built("rest-operations.md").partition(heading)[2].partition("\n### ")[0]
    assert "```sh\ncurl " in section
    fields = [*operation.query, *(operation.body.fields if operation.body else ())]
    assert [field.name for field in fields if f"| `{field.name}` |" not in section or not field.description] == []


def test_every_public_name_is_documented_once() -> None:
    markers = [found for page in (REFERENCE / "api").glob("*.md") for found in MARKER.findall(page.read_text("utf-8"))]
    named = [name for kind, names in markers if kind == "python" for name in names.split()]
    assert sorted(named) == sorted(python.public_names())


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in python.public_names() if not inspect.getdoc(python.found(name))] == []
    assert [name for owner in python.public_names() for name in _silent_methods(owner)] == []


def _silent_methods(owner: str) -> Iterator[str]:
    """The public methods of a class that have no docstring, also not inherited."""
    found = python.found(owner)
    for name, member in vars(found).items() if inspect.isclass(found) else ():
        is_method = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)
        if is_method and not name.startswith("_") and not inspect.getdoc(getattr(found, name)):
            yield f"{owner}.{name}"


def test_every_error_code_is_documented() -> None:
    page = built("errors.md")
    assert [code for code in errors.codes() if f"| `{code}` |" not in page] == []
    promised = re.findall(r", (\w+)$", (ROOT / "tests/promises/errors.txt").read_text("utf-8"), re.MULTILINE)
    assert set(promised) <= set(errors.codes())
