"""Pages and actions of the dashboard, as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everwork.server.http.ui.visit import Visit
from everwork.service.access.sessions import Session
from everwork.service.verb import Rule, Verb, rule_of


@dataclass(frozen=True, slots=True)
class View:
    """A template and its context."""

    template: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Download:
    """A text to be saved as a file, never rendered as a page."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: a message, and the page to redirect to; by default the page of the form."""

    message: str
    redirect_to: str | None = None
    is_good: bool = True
    session: Session | None = None
    """A session to start; an empty token ends the visitor's session."""


@dataclass(frozen=True, slots=True)
class Page:
    """A path that shows something. `is_open`: it needs no login."""

    path: str
    show: Callable[[Visit], Awaitable[View | Download]]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """A path that changes something when a form is sent. It returns a `View` to show, or `Done` to redirect.

    `verb`: the user must be allowed to call it. `confirms`: a form without `sure` gets a confirmation page, for
    browsers without JavaScript. `is_open`: it needs no login, and therefore no CSRF token.
    """

    path: str
    act: Callable[[Visit], Awaitable[Done | View]]
    verb: Verb | None = None
    confirms: bool = False
    is_open: bool = False

    @property
    def rule(self) -> Rule | None:
        """Who may call the verb."""
        return None if self.verb is None else rule_of(self.verb)
