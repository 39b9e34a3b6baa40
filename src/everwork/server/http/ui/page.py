"""What the dashboard is made of, as data: pages that show, and actions that change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everwork.server.http.ui.visit import Visit
from everwork.service.access.principal import Permission
from everwork.service.access.sessions import Session


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows: a template, and what it is filled with."""

    template: str
    context: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Download:
    """A text to be saved as a file; no browser takes it for a page."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """What an action has done, in a sentence, and where to go on; nowhere: back to where it was asked for."""

    said: str
    to: str | None = None
    is_good: bool = True
    session: Session | None = None
    """One that begins with it; with an empty token, the visitor's ends."""


@dataclass(frozen=True, slots=True)
class Page:
    """A path that shows something. `is_open`: also to whoever has not logged in."""

    path: str
    show: Callable[[Visit], Awaitable[View | Download]]
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """A path that changes something, by a form. A `View` is shown as it is; after anything else, another page.

    `needs`: what the visitor's key must allow, whatever the form brings. `asks`: a form that is not `sure` is answered
    with a question, where no script has asked it. `is_open`: also to whoever has not logged in, and so cannot have got
    the session's token.
    """

    path: str
    act: Callable[[Visit], Awaitable[Done | View]]
    needs: Permission | None = None
    asks: bool = False
    is_open: bool = False
