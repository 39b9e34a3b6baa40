"""The filters of a job list, as Python callers pass them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from everwork.codec.new_job import instant, search_text
from everwork.core import checks
from everwork.core.limits import NAME_CHARS_MAX
from everwork.core.queries import JobFilter, Order, order_named
from everwork.core.states import State
from everwork.exceptions import InvalidInput

T = TypeVar("T")


class JobFilters(TypedDict, total=False):
    """Which jobs a list shows, and in which order."""

    type: str | None
    group: str | None
    state: State | str | Iterable[State | str] | None
    tenants: Iterable[str] | None
    worker: str | None
    correlation_id: str | None
    dedupe_key: str | None
    created_after: datetime | None
    created_before: datetime | None
    error_text: str | None
    variables_text: str | None
    due: bool
    order: Order | str


def filter_of(wanted: Mapping[str, Any]) -> JobFilter:
    """Checked `JobFilters`; None means any value, and unknown filters are refused."""
    known = JobFilters.__annotations__
    for name in sorted(wanted.keys() - known.keys()):
        raise InvalidInput(name, f"unknown filter; allowed: {', '.join(sorted(known))}")
    state, due = wanted.get("state"), wanted.get("due", False)
    states = [state] if isinstance(state, str | State) else several("state", state)
    if not isinstance(due, bool):
        raise InvalidInput("due", f"must be True or False, not {checks.shown(due)}")
    return JobFilter(
        type=_given(wanted, "type", checks.name),
        group=_given(wanted, "group", lambda field, value: checks.text(field, value, NAME_CHARS_MAX)),
        states=frozenset(checks.state(one) for one in states),
        tenants=names("tenants", wanted.get("tenants")),
        worker=_given(wanted, "worker", checks.name),
        correlation_id=_given(wanted, "correlation_id", checks.name),
        dedupe_key=_given(wanted, "dedupe_key", checks.name),
        created_after_ms=_given(wanted, "created_after", instant),
        created_before_ms=_given(wanted, "created_before", instant),
        error_text=_given(wanted, "error_text", search_text),
        variables_text=_given(wanted, "variables_text", search_text),
        due=due,
        order=order_named(wanted.get("order", Order.NEWEST)),
    )


def _given(wanted: Mapping[str, Any], name: str, check: Callable[[str, Any], T]) -> T | None:
    value = wanted.get(name)
    return None if value is None else check(name, value)


def names(field: str, given: Iterable[str] | None) -> tuple[str, ...]:
    """Checked names; a string is a single name."""
    return tuple(checks.name(field, name) for name in ([given] if isinstance(given, str) else several(field, given)))


def several(field: str, given: Iterable[Any] | None) -> list[Any]:
    """The given values as a list; empty for None."""
    if given is not None and not isinstance(given, Iterable):
        raise InvalidInput(field, f"must be one value or a list of values, not {checks.shown(given)}")
    return [] if given is None else list(given)
