"""A client for streams, which may be in any slot of a cluster."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode

from everwork.engines.redis.place import Place


def client_of(place: Place) -> Any:
    """A client on the server or cluster of a store; it connects when it is used."""
    settings: dict[str, Any] = {"username": place.username, "password": place.password, "protocol": 3}
    if place.tls is not None:
        settings |= {"ssl": True, **place.tls}
    if place.is_cluster:
        return RedisCluster(startup_nodes=[ClusterNode(host, port) for host, port in place.hosts], **settings)
    if place.socket_path is not None:
        return Redis(unix_socket_path=place.socket_path, db=place.db, **settings)
    [(host, port)] = place.hosts
    return Redis(host=host, port=port, db=place.db, **settings)
