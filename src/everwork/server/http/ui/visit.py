"""One request to the dashboard: its visitor, query parameters and form fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from everwork.exceptions import InvalidInput
from everwork.server.http.framework.body import read_body
from everwork.server.http.framework.context import AppContext, AuthorisedRequest
from everwork.server.http.framework.problems import Refusal
from everwork.server.http.ui.address import address, local_address
from everwork.service.access.principal import ANYBODY, Permission, Principal
from everwork.service.access.sessions import OPERATOR, Session

FORM_BYTES_MAX: Final = 2 * 1_048_576
LOGIN_BYTES_MAX: Final = 16_384
"""For visitors who are not logged in: an API key, and the address of the page to continue to."""
FIELDS_MAX: Final = 2_000
FORM_TYPE: Final = "application/x-www-form-urlencoded"


class Visit(AuthorisedRequest):
    """A visitor's request. `path` (inside the dashboard) and `query` are those of the page, even when it is updated
    live.
    """

    def __init__(self, context: AppContext, request: Request, principal: Principal, session: Session) -> None:
        super().__init__(context, request, principal, is_person=True)
        self.session = session
        self.path: str = request.scope["path"]
        self.query = parse_pairs(request.scope["query_string"])
        self.form: Mapping[str, Sequence[str]] = {}

    @property
    def turn(self) -> AbstractAsyncContextManager[object]:
        """The turn of this request among those of the visitor's key; without a session it needs none."""
        return self.context.service.budgets.requests.of(self.principal) if self.session.token else nullcontext()

    @property
    def is_by_link(self) -> bool:
        """Whether the session started with a login link."""
        return self.session.badge == OPERATOR.id

    @property
    def login_name(self) -> str:
        """The visitor's name beside the logout button."""
        if self.is_by_link:
            return "Signed in by link"
        return "No login required" if self.principal is ANYBODY else self.principal.name

    @property
    def login_hint(self) -> str:
        """How the visitor logged in."""
        if self.is_by_link:
            return "This session started with a login link from the server and has all permissions"
        if self.principal is ANYBODY:
            return "Authentication is off: every visitor has all permissions"
        return "The API key or user of this session"

    @property
    def may_see_jobs(self) -> bool:
        """Whether the visitor may see jobs; a key with only the admin permission may not."""
        return self.principal.allows(Permission.JOBS_READ)

    @property
    def may_change_jobs(self) -> bool:
        """Whether the visitor may change jobs."""
        return self.principal.allows(Permission.JOBS)

    @property
    def may_administer(self) -> bool:
        """Whether the visitor may administer the whole store."""
        return self.principal.allows(Permission.ADMIN) and not self.principal.tenants

    @property
    def sees_all(self) -> bool:
        """Whether the visitor may see all tenants."""
        return not self.principal.tenants

    def param(self, name: str) -> str | None:
        """A query parameter, unstripped because names may start with a space; None if empty."""
        return self.query.get(name, [""])[-1] or None

    def url(self, **changes: str | None) -> str:
        """The URL of this page with some parameters changed; None removes one."""
        query = {name: values[-1] for name, values in self.query.items() if values[-1]}
        query |= {name: value for name, value in changes.items() if value is not None}
        kept = {name: value for name, value in query.items() if changes.get(name, value) is not None}
        return address(self.path, **kept)

    # Forms --------------------------------------------------------------------------------------

    async def read_form(self) -> None:
        """Read the fields of the form."""
        if self.request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
            raise Refusal(415, "unsupported_media_type", f"a form must be sent as {FORM_TYPE}")
        bytes_max = FORM_BYTES_MAX if self.session.token else LOGIN_BYTES_MAX
        self.form = parse_pairs(await read_body(self.request, bytes_max))

    def required(self, name: str) -> str:
        """A form field that must not be empty."""
        value = self.optional(name)
        if value is None:
            raise InvalidInput(name, "is required")
        return value

    def optional(self, name: str) -> str | None:
        """A form field, unstripped; None if empty."""
        return self.form.get(name, [""])[-1] or None

    def values(self, name: str) -> Sequence[str]:
        """All values of a repeated form field."""
        return self.form.get(name, [])

    @property
    def back(self) -> str:
        """The page of the form; always one of the dashboard."""
        return local_address(self.form.get("back", [""])[-1])


def parse_pairs(raw: bytes) -> dict[str, list[str]]:
    """Parse the values of a query or form, by name."""
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        raise InvalidInput("form or address", f"must be UTF-8 with at most {FIELDS_MAX:,} fields") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found
