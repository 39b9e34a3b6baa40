"""Clients, async and sync: for a store in this process, or for a server over gRPC. Names are loaded on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everwork.client.client import Client
    from everwork.client.job import ActiveJob
    from everwork.client.stream import Stream
    from everwork.client.sync import SyncClient
    from everwork.codec.new_job import new_job
    from everwork.core.queries import JobFilter

__all__ = ["ActiveJob", "Client", "JobFilter", "Stream", "SyncClient", "new_job"]

_MODULES = {
    "ActiveJob": "everwork.client.job",
    "Client": "everwork.client.client",
    "JobFilter": "everwork.core.queries",
    "Stream": "everwork.client.stream",
    "SyncClient": "everwork.client.sync",
    "new_job": "everwork.codec.new_job",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'everwork.client' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
