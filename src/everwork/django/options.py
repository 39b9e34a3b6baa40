"""The OPTIONS of a backend in TASKS, validated, with defaults from DATABASES."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from everwork.app.settings import Cron, Interval, schedule_from
from everwork.core import checks
from everwork.core.limits import ATTEMPTS_MAX, LEASE_MS_MAX
from everwork.exceptions import InvalidInput

MEMORY: Final = "sqlite:///:memory:"
NAMES: Final = ("cron", "database", "max_attempts", "modules", "timeout", "url")
TIMEOUT_SECONDS: Final = 3_600.0
"""Longer than for `@app.job`: authors of Django tasks do not expect a time limit."""
LIBPQ_NAMES: Final = (
    "options",
    "passfile",
    "service",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
)
"""The database OPTIONS that have the same name in the URL of a store; all others are Django's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The validated options of one backend.

    `database` is the alias whose transactions tasks join, if the store is in it. `max_attempts` and `timeout` are the
    defaults of tasks. `cron` maps task paths to schedules. `modules` are imported by workers, in addition to the
    `tasks` modules of all applications.
    """

    url: str | None = None
    database: str = "default"
    max_attempts: int = 1
    timeout: float = TIMEOUT_SECONDS
    cron: Mapping[str, Cron | Interval]
    modules: tuple[str, ...] = ()

    @classmethod
    def of(cls, alias: str, given: object) -> Options:
        """Validate the options of a backend; an error names the first invalid one."""
        where = f"TASKS[{alias!r}]['OPTIONS']"
        if not isinstance(given, Mapping):
            raise ImproperlyConfigured(f"{where}: must be a dictionary, not {checks.shown(given)}")
        try:
            return cls._checked(given)
        except InvalidInput as error:
            field = "" if error.field == "OPTIONS" else f"[{error.field!r}]"
            raise ImproperlyConfigured(f"{where}{field}: {error.problem}") from None

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> Options:
        if unknown := [name for name in given if name not in NAMES]:
            allowed = ", ".join(NAMES)
            raise InvalidInput("OPTIONS", f"{checks.shown(unknown[0])} is not an option; allowed: {allowed}")
        url = given.get("url")
        return cls(
            url=None if url is None else checks.text("url", url, 10_000),
            database=checks.name("database", given.get("database", "default")),
            max_attempts=checks.whole_number("max_attempts", given.get("max_attempts", 1), 1, ATTEMPTS_MAX),
            timeout=checks.number("timeout", given.get("timeout", TIMEOUT_SECONDS), 0.001, LEASE_MS_MAX / 1000),
            cron=_cron(given.get("cron", {})),
            modules=_modules(given.get("modules", ())),
        )

    def store_url(self) -> str:
        """The URL of the store: the one that is set, or the URL of the Django database."""
        return self.url if self.url is not None else _database_url(self.database)

    def joins_transactions(self) -> bool | None:
        """Whether the store is in the Django database, so that tasks are created in its transactions.

        None: both are in PostgreSQL, and only the server knows whether they are the same database.
        """
        database = _settings_of(self.database)
        match _kind(database):
            case "sqlite":
                return self.url is None or _path_of(self.url) == os.path.realpath(_file_of(database))
            case "postgresql":
                if self.url is None:
                    return True
                return None if self.url.startswith("postgres") else False
            case _:
                return False


def _cron(given: object) -> dict[str, Cron | Interval]:
    if not isinstance(given, Mapping):
        raise InvalidInput("cron", f"must be a dictionary from tasks to schedules, not {checks.shown(given)}")
    zone = settings.TIME_ZONE or "UTC"
    return {checks.name("cron", path): schedule_from(f"cron.{path}", value, zone) for path, value in given.items()}


def _modules(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple):
        raise InvalidInput("modules", f"must be a list of modules, not {checks.shown(given)}")
    return tuple(checks.name("modules", one) for one in given)


# The URL of a Django database ---------------------------------------------------------------------------


def _settings_of(alias: str) -> dict[str, Any]:
    """The current settings of a database, whose name changes in tests."""
    try:
        found: dict[str, Any] = connections[alias].settings_dict
    except ConnectionDoesNotExist:
        raise ImproperlyConfigured(
            f"everwork: OPTIONS['database'] names {alias!r}, which is not in DATABASES"
        ) from None
    return found


def _kind(database: Mapping[str, Any]) -> str:
    """`postgresql`, `sqlite` (a file) or another kind."""
    engine = str(database["ENGINE"])
    if engine.endswith(("postgresql", "postgis")):
        return "postgresql"
    if engine.endswith(("sqlite3", "spatialite")):
        return "memory" if _is_memory(database) else "sqlite"
    return engine


def _is_memory(database: Mapping[str, Any]) -> bool:
    name = str(database["NAME"])
    return name in ("", ":memory:") or name.startswith("file::memory:") or "mode=memory" in name


def _file_of(database: Mapping[str, Any]) -> str:
    """The file of a SQLite database; its name can be a URI."""
    name = str(database["NAME"])
    return unquote(urlsplit(name).path) if name.startswith("file:") else name


def _database_url(alias: str) -> str:
    database = _settings_of(alias)
    match _kind(database):
        case "postgresql":
            return _postgres_url(database)
        case "sqlite":
            return f"sqlite:///{quote(str(Path(_file_of(database)).absolute()))}"
        case "memory":
            # Only this process sees the in-memory database of Django's test runner, so the store is in memory, too.
            return MEMORY
        case other:
            raise ImproperlyConfigured(
                f"everwork: jobs cannot be stored in DATABASES[{alias!r}] ({other}): "
                "set OPTIONS['url'] to a SQLite, PostgreSQL or Redis store"
            )


def _postgres_url(database: Mapping[str, Any]) -> str:
    host, port = str(database["HOST"]), str(database["PORT"])
    user, password = (quote(str(database[name]), safe="") for name in ("USER", "PASSWORD"))
    account = f"{user}:{password}@" if password else f"{user}@" if user else ""
    query = {name: value for name, value in database["OPTIONS"].items() if name in LIBPQ_NAMES}
    if role := database["OPTIONS"].get("assume_role"):
        # Otherwise the tables would belong to the login role, and Django's own role could not use them.
        query["options"] = f"{query.get('options', '')} -c role={_escaped(role)}".strip()
    if not host or host.startswith(("/", "@")) or "," in host:  # A socket, several hosts, or no host.
        query |= {name: value for name, value in (("host", host), ("port", port)) if value}
        place = ""
    else:
        place = f"[{host}]" if ":" in host else host
        place += f":{port}" if port else ""
    options = f"?{urlencode(query)}" if query else ""
    return f"postgresql://{account}{place}/{quote(str(database['NAME']), safe='')}{options}"


def _escaped(value: object) -> str:
    """A value escaped for libpq's `options`, which are separated by spaces."""
    return str(value).replace("\\", r"\\").replace(" ", r"\ ")


def _path_of(url: str) -> str | None:
    """The file of a SQLite store; None for any other store."""
    parts = urlsplit(url)
    return os.path.realpath(unquote(parts.path)[1:]) if parts.scheme == "sqlite" else None
