"""The URL of a Redis store, parsed and checked."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from everwork.core.checks import shown
from everwork.exceptions import BadConfiguration

NAMESPACE_DEFAULT = "everwork"
PORT_DEFAULT = 6379
REPLICAS_MAX = 9
PASSWORD_VARIABLES = ("EVERWORK_REDIS_PASSWORD", "REDISCLI_AUTH")
PARAMETERS = ("namespace", "db", "replicas", "ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_NAMESPACE = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
_SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+unix")


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A server or cluster, a database and a namespace. The password is never shown."""

    hosts: tuple[tuple[str, int], ...]
    socket_path: str | None = None
    db: int = 0
    namespace: str = NAMESPACE_DEFAULT
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    is_cluster: bool = False
    tls: Mapping[str, str] | None = None
    replicas: int = 0
    """How many replicas must have a write before it is acknowledged."""

    @classmethod
    def from_url(cls, url: str) -> StoreUrl:
        """Parse a URL; raises `BadConfiguration` if it is invalid."""
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise BadConfiguration(f"engine URL: cannot be read: {error}") from None
        if parts.scheme not in _SCHEMES:
            raise BadConfiguration(f"engine URL: unknown scheme {parts.scheme!r} for Redis")
        parameters = _parameters(parts)
        account, hosts = _account(parts)
        is_unix = parts.scheme == "redis+unix"
        is_cluster = parts.scheme.endswith("+cluster")
        tls = {name: value for name, value in parameters.items() if name.startswith("ssl_")}
        if tls and not parts.scheme.startswith("rediss"):
            raise BadConfiguration(f"engine URL: {', '.join(tls)} need rediss:// or rediss+cluster://")
        return cls(
            hosts=() if is_unix else _hosts(hosts, several=is_cluster),
            socket_path=_socket_path(parts) if is_unix else None,
            db=_database(parameters.get("db"), "" if is_unix else parts.path, is_cluster=is_cluster),
            namespace=_namespace(parameters.get("namespace", NAMESPACE_DEFAULT)),
            username=account[0],
            password=account[1],
            is_cluster=is_cluster,
            tls=tls if parts.scheme.startswith("rediss") else None,
            replicas=_replicas(parameters.get("replicas", "0")),
        )

    @property
    def tag(self) -> str:
        """The prefix of every key of the store: in braces, so that a cluster keeps them in one slot."""
        return f"{{{self.namespace}}}"

    @property
    def text(self) -> str:
        """The URL as shown to people, without secrets."""
        if self.socket_path is not None:
            return f"redis+unix://{self.socket_path}?db={self.db}"
        scheme = ("rediss" if self.tls is not None else "redis") + ("+cluster" if self.is_cluster else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}/{self.db}"

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings; None without TLS."""
        if self.tls is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls.get("ssl_ca_certs"))
            if self.tls.get("ssl_cert_reqs", "required") == "none":
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if "ssl_certfile" in self.tls:
                context.load_cert_chain(self.tls["ssl_certfile"], self.tls.get("ssl_keyfile"))
        except (OSError, ssl.SSLError) as error:
            raise BadConfiguration(f"engine URL: the TLS files cannot be read: {error}") from None
        return context


def _parameters(parts: SplitResult) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise BadConfiguration("engine URL: the parameters must look like ?namespace=name") from None
    parameters = dict(pairs)
    unknown = [name for name in parameters if name not in PARAMETERS]
    if unknown:
        raise BadConfiguration(f"engine URL: unknown parameter {unknown[0]!r}; allowed: {', '.join(PARAMETERS)}")
    if parameters.get("ssl_cert_reqs", "required") not in ("required", "none"):
        raise BadConfiguration("engine URL: ssl_cert_reqs must be 'required' or 'none'")
    return parameters


def _account(parts: SplitResult) -> tuple[tuple[str | None, str | None], str]:
    """The user name and password, and the hosts that follow them."""
    before, _, hosts = parts.netloc.rpartition("@")
    name, _, password = before.partition(":")
    secret = unquote(password) or next((found for v in PASSWORD_VARIABLES if (found := os.environ.get(v))), None)
    return (unquote(name) or None, secret), hosts


def _hosts(text: str, *, several: bool) -> tuple[tuple[str, int], ...]:
    names = text.split(",")
    if len(names) > 1 and not several:
        raise BadConfiguration("engine URL: several hosts need redis+cluster://")
    return tuple(_host(name) for name in names)


def _host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise BadConfiguration(f"engine URL: the address {shown(text)} must look like host:port") from None
    return parts.hostname or "localhost", PORT_DEFAULT if port is None else port


def _socket_path(parts: SplitResult) -> str:
    path = unquote(parts.path)
    if not path or path == "/":
        raise BadConfiguration("engine URL: must name a socket, like redis+unix:///run/redis/redis.sock")
    return path


def _database(parameter: str | None, path: str, *, is_cluster: bool) -> int:
    in_path = path.strip("/")
    if parameter is not None and in_path and parameter != in_path:
        raise BadConfiguration("engine URL: names two databases; use either /0 or ?db=0")
    text = parameter if parameter is not None else in_path or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise BadConfiguration(f"engine URL: the database must be a number, like /0, not {shown(text)}")
    if is_cluster and int(text) != 0:
        raise BadConfiguration("engine URL: a Redis cluster has database 0 only; use namespace= instead")
    return int(text)


def _namespace(text: str) -> str:
    if not _NAMESPACE.match(text):
        raise BadConfiguration(f"engine URL: namespace must have 1 to 64 letters, digits or _ . : -, not {shown(text)}")
    return text


def _replicas(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) == 1):
        raise BadConfiguration(f"engine URL: replicas must be a number from 0 to {REPLICAS_MAX}, not {shown(text)}")
    return int(text)
