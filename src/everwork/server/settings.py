"""The settings of the server and of commands: flags override the environment, the environment overrides the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from everwork.codec.json import in_json_words
from everwork.codec.urls import HIDDEN, shown_url
from everwork.core import checks
from everwork.core.limits import (
    CONNECTIONS_DEFAULT,
    CONNECTIONS_MAX,
    CONNECTIONS_MIN,
    HOUR_MS,
    IN_FLIGHT_BYTES_DEFAULT,
    IN_FLIGHT_BYTES_EACH_DEFAULT,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_BYTES_MIN,
    KEEP_HOURS_MAX,
    NEW_TYPES_MAX,
    POLLERS_MAX,
    POLLERS_PER_KEY,
    RATE_PER_SECOND_MAX,
    REQUESTS_PER_KEY,
    SEARCHES_PER_KEY,
    STREAMS_MAX,
    STREAMS_PER_KEY,
    TENANT_FACTOR,
    TYPE_KEEP_MS,
    TYPES_MAX,
)
from everwork.exceptions import BadConfiguration, InvalidInput
from everwork.server import settings_values as read
from everwork.server.addresses import is_loopback
from everwork.server.settings_file import DEFAULT_FILE, read_file
from everwork.server.settings_tls import require_tls
from everwork.server.settings_values import DEFAULT_ENGINE
from everwork.service.access.budgets import Budgets
from everwork.service.access.keys import require_environment_key
from everwork.service.job_types import TypeRules
from everwork.service.policies import (
    DEFAULTED,
    NOTHING_DECLARED,
    PAUSED,
    Declared,
    fields_from_texts,
    require_default,
    types_from,
)
from everwork.spool.settings import (
    AGE_SECONDS_DEFAULT,
    AGE_SECONDS_MAX,
    BYTES_DEFAULT,
    BYTES_MAX,
    BYTES_MIN,
    Spool,
)

PREFIX: Final = "EVERWORK_"
SWITCH: Final = ("on", "off")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("console", "json")
MASKED: Final = (
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "token",
    "bearer",
    "jwt",
    "api key",
    "access key",
    "private key",
    "encryption key",
    "authorization",
    "credential",
    "cookie",
)
RATE_LIMIT: Final = 10_000
"""More than one server process can handle, so that it stops a caller that floods a server with cheap requests, but no
worker.
"""
SIMILARITY_MIN: Final = 0.8
"""The minimum similarity at which an unknown name is considered a typo."""

__all__ = ["DEFAULT_FILE", "Settings", "declared_settings", "engine_url", "load"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """All settings. Each name is a key in the file and, with the prefix EVERWORK_, an environment variable."""

    engine: str = DEFAULT_ENGINE
    host: str = "127.0.0.1"
    grpc_port: int = 27500
    http_port: int = 27555
    auth: str = "on"
    insecure: str = "off"
    api_key: str | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    long_poll_seconds: float = 30
    pollers_per_type: int = POLLERS_MAX
    pollers_per_key: int = POLLERS_PER_KEY
    requests_per_key: int = REQUESTS_PER_KEY
    searches_per_key: int = SEARCHES_PER_KEY
    streams_per_key: int = STREAMS_PER_KEY
    tenant_factor: int = TENANT_FACTOR
    max_types: int = TYPES_MAX
    max_new_types: int = NEW_TYPES_MAX
    types_keep_hours: float = round(TYPE_KEEP_MS / HOUR_MS)
    rate_limit: float = RATE_LIMIT
    max_connections: int = CONNECTIONS_DEFAULT
    max_streams: int = STREAMS_MAX
    max_bytes_in_flight: int = IN_FLIGHT_BYTES_DEFAULT
    max_bytes_in_flight_per_key: int = IN_FLIGHT_BYTES_EACH_DEFAULT
    trusted_proxies: tuple[str, ...] = ()
    masked_variables: tuple[str, ...] = MASKED
    shutdown_seconds: float = 10
    offline: Path | None = None
    offline_max_bytes: int = BYTES_DEFAULT
    offline_max_age: float = round(AGE_SECONDS_DEFAULT)
    log_level: str = "warning"
    log_format: str = "console"
    failed_job_retry_hours: float | str | None = None
    failed_job_retry_rounds: int | str | None = None
    breaker_failures: int | str | None = None
    breaker_seconds: float | str | None = None
    types: Declared = NOTHING_DECLARED

    @property
    def declared(self) -> Declared:
        """The declarations about types in these settings."""
        defaults = {name: value for name in DEFAULTED if (value := getattr(self, name)) is not None}
        return self.types._replace(defaults=fields_from_texts(defaults))

    @property
    def type_rules(self) -> TypeRules:
        """The limits on job types, and the policies that these settings declare for them."""
        return TypeRules(
            types_max=self.max_types,
            new_types_max=self.max_new_types,
            keep_ms=round(self.types_keep_hours * HOUR_MS),
            declared=self.declared,
        )

    @property
    def spool(self) -> Spool | None:
        """The spool of offline mode, if offline mode is enabled."""
        if self.offline is None:
            return None
        return Spool(str(self.offline), max_bytes=self.offline_max_bytes, max_age=self.offline_max_age)

    @property
    def budgets(self) -> Budgets:
        """The budgets of API keys and tenants."""
        names = ("requests_per_key", "searches_per_key", "pollers_per_key", "pollers_per_type", "tenant_factor")
        return Budgets(**{name: getattr(self, name) for name in names})

    @property
    def has_auth(self) -> bool:
        """Whether callers need a key."""
        return self.auth == "on"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this host can call."""
        return is_loopback(self.host)

    def shown(self) -> dict[str, Any]:
        """The settings as JSON values, without secrets."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
        hidden = None if self.api_key is None else HIDDEN
        lists = {name: [*getattr(self, name)] for name in ("trusted_proxies", "masked_variables")}
        return shown | {"engine": shown_url(self.engine), "api_key": hidden, **lists, "types": _shown_types(self.types)}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.shown().items())})"


def load(config_path: str | Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """The effective settings. Without a path, `everwork.toml` in the working directory is read, if it exists."""
    given = {**_from_file(config_path), **_from_environment(environ), **_from_flags(flags)}
    settings = Settings(**{name: _value(name, one) for name, one in given.items()})
    origins = {name: one.origin for name, one in given.items()}
    _require_auth_or_loopback(settings, origins)
    require_tls(settings, origins)
    return settings


def engine_url(config_path: str | Path | None, environ: Mapping[str, str], flag: str | None) -> str:
    """Only the engine's URL, for commands that need nothing else: other invalid settings must not make them fail."""
    from_environment = _from_environment(environ)
    is_named = flag is not None or "engine" in from_environment
    from_file = {} if is_named and config_path is None else _from_file(config_path)
    given = {**from_file, **from_environment, **_from_flags({"engine": flag})}
    return str(_value("engine", given["engine"])) if "engine" in given else DEFAULT_ENGINE


def declared_settings(config_path: str | Path | None, environ: Mapping[str, str]) -> Declared:
    """Only the declarations about types, for commands that run a program with its own store."""
    given = {**_from_file(config_path), **_from_environment(environ)}
    values = {name: _value(name, one) for name, one in given.items() if name in (*DEFAULTED, "types")}
    return Settings(**values).declared


# Sources ----------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """A value as given, and its origin."""

    value: object
    origin: str


def _from_file(path: str | Path | None) -> dict[str, _Given]:
    found = read_file(path)
    if found is None:
        return {}
    file, values = found
    for name in values:
        if name == "api_key":
            raise BadConfiguration(
                f"api_key (file {file}): must not be set in a file, which can be copied or committed; "
                f"set the environment variable {PREFIX}API_KEY"
            )
        if name not in _READERS:
            raise _unknown(name, str(file))
    return {name: _Given(value, f"file {file}") for name, value in values.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    """The environment variables that are set; an empty one counts only where it means that nothing is masked."""
    given: dict[str, _Given] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name == "types":
            raise BadConfiguration(
                f"environment variable {variable}: types can be configured only in the settings file"
            )
        if name in _READERS:
            if text or name == "masked_variables":
                given[name] = _Given(_from_text(name, text), f"environment variable {variable}")
        elif similar := get_close_matches(name, _READERS, 1, SIMILARITY_MIN):
            raise BadConfiguration(
                f"environment variable {checks.shown(variable)[1:-1]}: is unknown; "
                f"did you mean {PREFIX}{similar[0].upper()}?"
            )
    return given


def _from_flags(flags: Mapping[str, object]) -> dict[str, _Given]:
    """The flags that were given; None means unset."""
    return {
        name: _Given(_from_text(name, value) if isinstance(value, str) else value, f"flag {_flag(name)}")
        for name, value in flags.items()
        if value is not None
    }


def _flag(name: str) -> str:
    """The name of a setting's flag; one differs from its key."""
    return "--no-auth" if name == "auth" else f"--{name.replace('_', '-')}"


def _unknown(name: str, file: str) -> BadConfiguration:
    allowed = [one for one in _READERS if one != "api_key"]
    similar = get_close_matches(name.lower(), allowed, 1, SIMILARITY_MIN)
    hint = f"did you mean {similar[0]}? " if similar else ""
    return BadConfiguration(f"{checks.shown(name)} (file {file}): unknown setting; {hint}allowed: {', '.join(allowed)}")


def _from_text(name: str, text: str) -> object:
    """Convert a string from the environment or the command line to the value that the file would hold."""
    default = getattr(_DEFAULTS, name)
    if isinstance(default, tuple):
        return [part.strip() for part in text.split(",") if part.strip()]
    return checks.typed(text) if isinstance(default, int | float) or name in DEFAULTED else text


# Values -----------------------------------------------------------------------------------------------


def _value(name: str, given: _Given) -> Any:
    try:
        return _READERS[name](given.value)
    except InvalidInput as error:
        raise BadConfiguration(f"{error.field or name} ({given.origin}): {in_json_words(error.problem)}") from None


def _shown_types(types: Declared) -> dict[str, Any]:
    paused = {type: {PAUSED: is_paused} for type, is_paused in types.paused.items()}
    return {type: {**policy, **paused.get(type, {})} for type, policy in types.types.items()}


_DEFAULTS: Final = Settings()
_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "engine": read.engine_text,
    "host": read.host,
    "grpc_port": read.whole(0, 65_535),
    "http_port": read.whole(0, 65_535),
    "auth": read.one_of(SWITCH),
    "insecure": read.one_of(SWITCH),
    "api_key": lambda value: require_environment_key(str(value)),
    "tls_certificate": read.path,
    "tls_key": read.path,
    "tls_client_ca": read.path,
    "long_poll_seconds": read.real(0, 300),
    "pollers_per_type": read.whole(1, 100_000),
    "pollers_per_key": read.whole(1, 100_000),
    "requests_per_key": read.whole(1, 100_000),
    "searches_per_key": read.whole(1, 1_000),
    "streams_per_key": read.whole(1, 100_000),
    "tenant_factor": read.whole(1, 1_000),
    "max_types": read.whole(1, 1_000_000),
    "max_new_types": read.whole(1, 1_000_000),
    "types_keep_hours": read.real(1, KEEP_HOURS_MAX),
    "rate_limit": read.real(0, RATE_PER_SECOND_MAX),
    "max_connections": read.whole(CONNECTIONS_MIN, CONNECTIONS_MAX),
    "max_streams": read.whole(1, 100_000),
    "max_bytes_in_flight": read.whole(IN_FLIGHT_BYTES_MIN, IN_FLIGHT_BYTES_MAX),
    "max_bytes_in_flight_per_key": read.whole(IN_FLIGHT_BYTES_MIN, IN_FLIGHT_BYTES_MAX),
    "trusted_proxies": read.networks,
    "masked_variables": read.names,
    "shutdown_seconds": read.real(0, 600),
    "offline": read.path,
    "offline_max_bytes": read.whole(BYTES_MIN, BYTES_MAX),
    "offline_max_age": read.real(1, AGE_SECONDS_MAX),
    "log_level": read.one_of(LOG_LEVELS),
    "log_format": read.one_of(LOG_FORMATS),
    "failed_job_retry_hours": partial(require_default, "failed_job_retry_hours"),
    "failed_job_retry_rounds": partial(require_default, "failed_job_retry_rounds"),
    "breaker_failures": partial(require_default, "breaker_failures"),
    "breaker_seconds": partial(require_default, "breaker_seconds"),
    "types": types_from,
}


# Combinations -----------------------------------------------------------------------------------------


def _require_auth_or_loopback(settings: Settings, origins: Mapping[str, str]) -> None:
    if settings.has_auth or settings.is_loopback:
        return
    raise BadConfiguration(
        f"auth ({origins['auth']}): must be on when host is {settings.host}; "
        "only a loopback address (127.0.0.1, ::1, localhost) works without it"
    )
