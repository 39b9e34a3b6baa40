"""A client for streams, which may be in any slot of a cluster."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from everwork.engines.redis.connection import CONNECT_SECONDS
from everwork.engines.redis.store_url import Place
from everwork.engines.redis.wire import SILENCE_SECONDS


def client_of(place: Place) -> Any:
    """A client on the server or cluster of a store; it connects when it is used."""
    settings: dict[str, Any] = {
        "username": place.username, "password": place.password, "protocol": 3,
        "socket_connect_timeout": CONNECT_SECONDS, "socket_timeout": SILENCE_SECONDS,
    }  # fmt: skip
    if place.tls is not None:
        settings |= {"ssl": True, **place.tls}
    if place.is_cluster:
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in place.hosts], **settings)
    # One try more for a connection that was cut meanwhile; whoever asks is stubborn himself.
    settings["retry"] = Retry(NoBackoff(), 1)
    if place.socket_path is not None:
        return Redis(unix_socket_path=place.socket_path, db=place.db, **settings)
    [(host, port)] = place.hosts
    return Redis(host=host, port=port, db=place.db, **settings)
