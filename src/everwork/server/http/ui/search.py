"""The search form of jobs: parses its fields, and reports problems per field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from everwork.codec.new_job import search_text
from everwork.core import checks
from everwork.core.queries import JobFilter
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.moments import utc_moment
from everwork.server.http.ui.redaction import Masks, only_shown
from everwork.service.bulk import BulkFilter

SCHEDULED: Final = "scheduled"
DUE: Final = "due"
SUBSTATES: Final = (SCHEDULED, DUE)
"""Values of the state field that select only a part of the pending jobs."""
FIELDS: Final = ("state", "type", "worker", "tenant", "correlation", "dedupe", "after", "before", "error", "variables")

ReadField = Callable[[str], str | None]
"""Returns the value of a field; None if it is empty."""


@dataclass(frozen=True, slots=True)
class SearchForm:
    """A search, the typed texts, and their problems by field."""

    search: BulkFilter
    typed: Mapping[str, str]
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """The search as a query string, so that it can be passed on."""
        return urlencode(self.typed)


def read_search(read: ReadField, masks: Masks) -> SearchForm:
    """Parse the search form; masked values cannot be searched for."""
    typed = {name: value for name in FIELDS if (value := read(name)) is not None}
    problems: dict[str, str] = {}
    found = {name: _checked(name, value, problems) for name, value in typed.items()}
    states, due = found.get("state") or (frozenset(), False)
    filter_ = JobFilter(
        type=found.get("type"),
        states=states,
        tenants=(found["tenant"],) if found.get("tenant") else (),
        worker=found.get("worker"),
        correlation_id=found.get("correlation"),
        dedupe_key=found.get("dedupe"),
        created_after_ms=found.get("after"),
        created_before_ms=found.get("before"),
        error_text=found.get("error"),
        variables_text=found.get("variables"),
        due=due,
    )
    search = BulkFilter(filter_, scheduled=typed.get("state") == SCHEDULED)
    return SearchForm(only_shown(search, masks), typed, problems)


def _checked(name: str, text: str, problems: dict[str, str]) -> Any:
    try:
        return _READERS.get(name, checks.name)(name, text)
    except InvalidInput as error:
        problems[name] = error.problem
        return None


def _state(name: str, text: str) -> tuple[frozenset[State], bool]:
    if text in SUBSTATES:
        return frozenset([State.PENDING]), text == DUE
    if text not in {state.label for state in State}:
        allowed = ", ".join([*(state.label for state in State), *SUBSTATES])
        raise InvalidInput(name, f"must be one of {allowed}, not {checks.shown(text)}")
    return frozenset([checks.state(text)]), False


_READERS: Final[Mapping[str, Callable[[str, str], object]]] = {
    "state": _state,
    "after": utc_moment,
    "before": utc_moment,
    "error": search_text,
    "variables": search_text,
}
