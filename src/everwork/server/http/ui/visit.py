"""One request to the dashboard: who comes, what was asked for, and what came with a form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.requests import Request

from everwork.exceptions import InvalidInput
from everwork.server.http.framework.body import read_body
from everwork.server.http.framework.context import AppContext, Caller
from everwork.server.http.framework.problems import Refusal
from everwork.service.access.principal import Permission, Principal
from everwork.service.access.sessions import Session

FORM_BYTES_MAX: Final = 2 * 1_048_576
FIELDS_MAX: Final = 2_000
FORM_TYPE: Final = "application/x-www-form-urlencoded"
HOME: Final = "/ui"
_LEAVING: Final = re.compile(r"//|/\.\.?(/|$)")
"""What browsers take for a way out of a folder."""


class Visit(Caller):
    """Who looks at which page. `path` and `query` are the page's own, also where a live page asks for it again."""

    def __init__(self, parts: AppContext, request: Request, principal: Principal, session: Session) -> None:
        super().__init__(parts, request, principal)
        self.session = session
        self.path = request.scope["path"]
        self.query = pairs_of(request.scope["query_string"])
        self.names: Mapping[str, str] = request.path_params
        self.form: Mapping[str, Sequence[str]] = {}

    @property
    def may_see_jobs(self) -> bool:
        """Whether the visitor may look at jobs at all; a key for administration alone may not."""
        return self.principal.allows(Permission.JOBS_READ)

    @property
    def may_change_jobs(self) -> bool:
        """Whether to offer what changes jobs."""
        return self.principal.allows(Permission.JOBS)

    @property
    def may_administer(self) -> bool:
        """Whether to offer what concerns the whole store."""
        return self.principal.allows(Permission.ADMIN) and not self.principal.tenants

    @property
    def sees_all(self) -> bool:
        """Whether the visitor may see what concerns all tenants together."""
        return not self.principal.tenants

    def asked(self, name: str) -> str | None:
        """A parameter of the query, to the letter: names may begin with a space. An empty one asks for nothing."""
        return self.query.get(name, [""])[-1] or None

    def here(self, **changes: str | None) -> str:
        """This page's address, with some parameters changed; None takes one away."""
        query = {name: values[-1] for name, values in self.query.items() if values[-1]}
        query |= {name: value for name, value in changes.items() if value is not None}
        kept = [(name, value) for name, value in query.items() if changes.get(name, value) is not None]
        return f"{self.path}?{urlencode(kept)}" if kept else self.path

    # Forms --------------------------------------------------------------------------------------

    async def read_form(self) -> None:
        """Take what the form has brought."""
        if self.request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
            raise Refusal(415, "unsupported_media_type", f"a form must come as {FORM_TYPE}")
        self.form = pairs_of(await read_body(self.request, FORM_BYTES_MAX))

    def sent(self, name: str) -> str:
        """A field of the form that must be there, and not be empty."""
        value = self.optional(name)
        if value is None:
            raise InvalidInput(name, "must be given")
        return value

    def optional(self, name: str) -> str | None:
        """A field of the form, to the letter; an empty one was not filled in."""
        return self.form.get(name, [""])[-1] or None

    def all_sent(self, name: str) -> Sequence[str]:
        """A field that may be there many times."""
        return self.form.get(name, [])

    @property
    def back(self) -> str:
        """Where the form says that it was; a page of the dashboard in any case."""
        return own_path(self.form.get("back", [""])[-1])


def pairs_of(raw: bytes) -> dict[str, list[str]]:
    """The values of a query or a form, by name."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise InvalidInput("query", f"must be at most {FIELDS_MAX:,} fields in UTF-8") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def own_path(text: str) -> str:
    """A path of the dashboard as it was given; of anything else, the first page."""
    path = unquote(text.partition("?")[0])
    is_own = path == HOME or path.startswith(f"{HOME}/")
    is_plain = text.isascii() and text.isprintable() and "\\" not in text
    return text if is_own and is_plain and not _LEAVING.search(path) else HOME
