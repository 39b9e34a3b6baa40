"""URLs of the dashboard: paths are relative to the dashboard, and get the prefix under which it is served.

The server uses `/ui`; an ASGI application can mount it under any path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlencode

from starlette.types import Scope

HOME: Final = "/"
"""The path of the first page."""
_LEAVING: Final = re.compile(r"//|/\.\.?(/|$)")
"""Parts of a path that browsers would resolve to another folder or host."""


class Prefix(NamedTuple):
    """The start of every page's URL: empty, or a path without a trailing slash."""

    path: str
    home: str
    """The address of the first page."""

    def at(self, path: str) -> str:
        """The address of a path inside the dashboard."""
        return self.home if path == HOME else self.path + path

    @property
    def cookie_path(self) -> str:
        """The path for cookies that browsers send only to this dashboard."""
        return self.path or "/"


SERVER: Final = Prefix("/ui", "/ui")
"""The prefix on a server."""
_SCOPE: Final = "everwork.prefix"
_current: Final[ContextVar[Prefix]] = ContextVar("everwork_dashboard_prefix", default=SERVER)


def mounted(path: str) -> Prefix:
    """The prefix of a dashboard below a path of another application; its first page ends with a slash."""
    quoted = quote(path.rstrip("/"), safe="/~!$'()*+,=:@")
    if quoted.startswith("//"):
        quoted = "/" + quoted.lstrip("/")  # Browsers would mistake its first part for a host.
    return Prefix(quoted, f"{quoted}/")


def below(scope: Scope, prefix: Prefix, depth: int) -> Scope:
    """The scope of a request inside the dashboard: its path without the first `depth` segments."""
    sent = scope.get("raw_path") or quote(scope["path"]).encode()  # Not every server has the raw path.
    raw = b"".join(b"/" + segment for segment in sent.split(b"/")[depth + 1 :])
    path = unquote(raw.decode("ascii", "replace"))
    return {**scope, "path": path, "raw_path": raw, "root_path": prefix.path, _SCOPE: prefix}


def prefix_of(scope: Scope) -> Prefix:
    """The prefix of a request."""
    found: Prefix = scope[_SCOPE]
    return found


@contextmanager
def under(prefix: Prefix) -> Iterator[None]:
    """Use this prefix for addresses inside the context."""
    token = _current.set(prefix)
    try:
        yield
    finally:
        _current.reset(token)


def address(path: str, /, **query: object) -> str:
    """The address of a path inside the dashboard; parameters that are None or empty are omitted."""
    start = _current.get().at(path)
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{start}?{urlencode(given)}" if given else start


def base() -> str:
    """The prefix of every address in the current context."""
    return _current.get().path


def job_url(key: int | str) -> str:
    """The page of a job."""
    return address(f"/jobs/{quote(str(key), safe='')}")


def type_url(type: str) -> str:
    """The page of a type."""
    return address("/type", name=type)


def local_address(text: str) -> str:
    """Return an address of the dashboard unchanged; replace anything else with the first page."""
    return text if inner_path(text) is not None else address(HOME)


def inner_path(text: str) -> str | None:
    """The path and query of an address inside the dashboard; None if the address leads elsewhere."""
    path, prefix = unquote(text.partition("?")[0]), unquote(base())
    is_own = path.startswith(f"{prefix}/") or path == prefix != ""
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    if not (is_own and is_plain) or _LEAVING.search(path):
        return None
    sent, _, query = text.partition("?")
    rest = "/".join(["", *sent.split("/")[base().count("/") + 1 :]]) or HOME
    return f"{rest}?{query}" if query else rest
