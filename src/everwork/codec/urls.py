"""Engine URLs: never shown with a password, and refused if a password is not encoded properly."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from everwork.exceptions import BadConfiguration

HIDDEN: Final = "***"
SYNONYMS: Final = {
    "postgres": "postgresql",
    "redis+socket": "redis+unix",
    **{f"{name}+{driver}": "postgresql" for name in ("postgresql", "postgres") for driver in (
        "asyncpg", "psycopg", "psycopg_async", "psycopg2", "pg8000",
    )},
    **{f"sqlite+{driver}": "sqlite" for driver in ("aiosqlite", "pysqlite")},
}  # fmt: skip
"""URL schemes of SQLAlchemy and Celery, mapped to ours; the driver in the scheme is ignored."""
_HOST: Final = r"(\[[^\]]*\]|[^:,\[\]]*)(:\d*)?"
_HOSTS: Final = re.compile(f"{_HOST}(,{_HOST})*")
_SECRET: Final = re.compile(r"(?<=[?&])([^=&]*(?:pass|secret|token)[^=&]*)=[^&]*", re.IGNORECASE)


def engine_url(url: str) -> str:
    """The URL with the scheme of its engine: `postgresql+asyncpg://...` becomes `postgresql://...`."""
    scheme, colon, rest = url.partition(":")
    known = SYNONYMS.get(scheme.lower())
    return url if known is None else f"{known}{colon}{rest}"


def shown_url(url: str) -> str:
    """The URL with its password hidden, even if it is not encoded properly."""
    scheme, is_url, rest = url.partition("://")
    if not is_url or SYNONYMS.get(scheme, scheme) == "sqlite":
        return url
    # An unencoded password can contain any character, even "/" and "@": everything before the last "@" is suspect.
    userinfo, has_user, host = rest.rpartition("@")
    user, has_password, _ = userinfo.partition(":")
    shown = f"{user}:{HIDDEN}@" if has_password else f"{userinfo}{has_user}"
    return f"{scheme}://{shown}" + _SECRET.sub(rf"\1={HIDDEN}", host)


def store_name(url: str) -> str:
    """The part of a URL that identifies the store: its location and schema or namespace, without user and options."""
    parts = urlsplit(engine_url(url))
    secure = {"rediss": "redis", "rediss+cluster": "redis+cluster", "grpcs": "grpc"}
    scheme = secure.get(parts.scheme, parts.scheme)
    if scheme == "sqlite":
        return f"sqlite:///{os.path.realpath(unquote(parts.path)[1:])}"
    named = [(name, value) for name, value in parse_qsl(parts.query) if name in ("schema", "namespace", "host", "port")]
    options = f"?{urlencode(sorted(named))}" if named else ""
    return f"{scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}{options}"


def require_encoded(url: str) -> None:
    """Refuse a server URL whose password could be parsed as another part and then appear in a message."""
    scheme, is_url, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    path = re.split("[?#]", rest, maxsplit=1)[0].removeprefix(authority)
    user, _, host = authority.rpartition("@")
    is_path_odd = "@" in path and SYNONYMS.get(scheme, scheme) != "redis+unix"
    is_user_odd = any(sign in unicodedata.normalize("NFKC", user) for sign in "/?#@[")
    if not is_url or is_path_odd or is_user_odd or not _HOSTS.fullmatch(host):
        raise BadConfiguration(
            f"engine URL: must look like {scheme.partition(':')[0]}://user:password@host:port/name, with / ? # @ [ in "
            "user and password written as %2F %3F %23 %40 %5B"
        )
