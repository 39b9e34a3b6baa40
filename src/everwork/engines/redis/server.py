"""The requirements for a server, checked against its INFO reply."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from everwork.engines.values import Durability
from everwork.exceptions import BadConfiguration, EngineUnavailable

VERSION_MIN = (6, 2)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that meets the requirements."""

    name: str
    version: str
    maxmemory_policy: str
    has_append_only_file: bool
    appendfsync: str | None
    is_cluster: bool

    @property
    def durability(self) -> Durability:
        """The failures that an accepted job survives on this server."""
        if not self.has_append_only_file:
            return Durability.NONE
        return Durability.POWER_LOSS if self.appendfsync == "always" else Durability.PROCESS_CRASH


UNKNOWN = Server("redis", "", "", False, None, False)
"""The server before the first connection."""


def parse_info(text: str) -> dict[str, str]:
    """The fields of an INFO reply."""
    lines = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value.strip() for name, _, value in lines}


def checked(info: Mapping[str, str], appendfsync: str | None, where: str) -> Server:
    """The server, or an error that says why it cannot hold jobs and what to do."""
    version = info.get("redis_version", "0")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < VERSION_MIN:
        required = ".".join(str(number) for number in VERSION_MIN)
        raise BadConfiguration(f"{where} is Redis {version}; Everwork needs {required} or newer, or Valkey")
    if info.get("role", "master") != "master":
        master = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        raise EngineUnavailable(f"{where} is a read-only replica; use its primary ({master}) in the URL instead")
    if info.get("loading") == "1":
        # While a server loads its append-only file, INFO shows that it has none.
        raise EngineUnavailable(f"{where} is still loading its data; retry later")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys-"):
        raise BadConfiguration(
            f"{where} may delete any key when memory is full (maxmemory-policy {policy}), which loses jobs; "
            "run: CONFIG SET maxmemory-policy noeviction"
        )
    valkey = info.get("valkey_version")
    return Server(
        name="valkey" if valkey else "redis",
        version=valkey or version,
        maxmemory_policy=policy,
        has_append_only_file=info.get("aof_enabled") == "1",
        appendfsync=appendfsync,
        is_cluster=info.get("cluster_enabled") == "1",
    )
