"""Where a torture run has its store: a file, or a server of its own that it may kill and disturb."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import psycopg
import redis

from tests.servers import LOOPBACK, RedisCluster, RedisServer, Server, postgres_server, redis_cluster, redis_server
from tests.stores import word_of

_FAIL_OVER_SECONDS: Final = 6.0
_DISK_BYTES: Final = 4_000_000_000
_CLUSTERED: Final = ("--appendfsync", "always", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
"""With these options, a replica takes over about three seconds after its master was killed."""
Disturbance = Callable[[str, random.Random], str]


class Killable(Protocol):
    """A database server that a run can kill and restart."""

    @property
    def url(self) -> str:
        """Its URL for an engine."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...

    def start(self) -> object:
        """Start it again, with all accepted data."""
        ...


class ClusterNode:
    """The node of a Redis cluster that holds the store: all keys of a namespace are in one slot.

    It has a replica. Acknowledged writes are on both, so either may be lost.
    """

    def __init__(self, cluster: RedisCluster) -> None:
        self.cluster = cluster
        self._killed: RedisServer | None = None
        self._heir: RedisServer | None = None
        self._asked_at = math.inf

    @property
    def url(self) -> str:
        """The URL with all nodes, so that a client that starts while one of them is down finds the others."""
        return f"redis+cluster://{','.join(f'{LOOPBACK}:{node.port}' for node in self.cluster.nodes)}/"

    def kill(self) -> None:
        """Kill the node that has the store."""
        self.wait()
        self._killed, self._heir, self._asked_at = self._holder(), self._replica(), math.inf
        self._killed.kill()

    def fail_over(self) -> None:
        """Ask the replica of the node that has the store to take over; see `has_failed_over`."""
        self.wait()
        self._heir = self._replica()
        self._ask_heir()

    def _ask_heir(self) -> None:
        assert self._heir is not None
        self._heir.ask("CLUSTER", "FAILOVER")
        self._asked_at = time.monotonic()

    def has_failed_over(self) -> bool:
        """Whether the replica has taken over; if Redis has given up, as after 5 s without enough votes, ask again."""
        if self._heir is None or _is_master(self._heir):
            return self._heir is not None
        if time.monotonic() - self._asked_at > _FAIL_OVER_SECONDS:
            self._ask_heir()
        return False

    def start(self) -> None:
        """Restart the node, and wait until the cluster is complete."""
        if self._killed is not None:
            self._killed.start()
        self.wait()

    def wait(self) -> None:
        """Wait until the cluster is complete, with its replicas."""
        self.cluster.wait()

    def _holder(self) -> RedisServer:
        """The master that holds most of the keys."""
        return max(filter(_is_master, self.cluster.nodes), key=lambda node: int(node.ask("DBSIZE")))

    def _replica(self) -> RedisServer:
        master = f"master_port:{self._holder().port}\r"
        [replica] = [node for node in self.cluster.nodes if master in node.ask("INFO", "replication")]
        return replica


def _is_master(node: RedisServer) -> bool:
    return "role:master" in node.ask("INFO", "replication")


class Disk:
    """A small file system in memory that can be filled; only root can mount one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.is_there = _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder))

    def fill(self) -> None:
        """Leave no free space."""
        used = shutil.disk_usage(self.folder).used
        _run("mount", "-o", f"remount,size={max(used, 4_096)}", str(self.folder))

    def empty(self) -> None:
        """Make free space again."""
        _run("mount", "-o", f"remount,size={_DISK_BYTES}", str(self.folder))

    def remove(self) -> None:
        """Unmount it; its contents are lost."""
        if self.is_there:
            _run("umount", "-l", str(self.folder))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Place:
    """Stores of one engine, and the server behind them, if there is one."""

    def __init__(self, engine: str, server: Killable | None = None) -> None:
        self.engine = engine
        self.server = server

    @property
    def port(self) -> int | None:
        """The port of the server, for a proxy; None for SQLite, and for clusters, whose clients discover the nodes."""
        return self.server.port if isinstance(self.server, Server) else None

    def url(self, folder: Path, port: int | None = None) -> str:
        """The store that belongs to this folder; through a proxy's port, if one is given."""
        if self.server is None:
            return f"sqlite:///{folder}/torture.db"
        named = "schema" if self.engine == "postgres" else "namespace"
        server = self.server.url.replace(f":{self.port}/", f":{port or self.port}/")
        replicas = "&replicas=1" if isinstance(self.server, ClusterNode) else ""
        return f"{server}?{named}=torture_{word_of(folder)}{replicas}"

    def disturb(self, rng: random.Random) -> str:
        """Do something to the server that its clients must survive; what was done."""
        assert self.server is not None
        urls = [self.server.url]
        if isinstance(self.server, ClusterNode):
            urls = [node.url for node in self.server.cluster.nodes]
        return rng.choice(_DISTURBANCES[self.engine])(rng.choice(urls), rng)


@contextmanager
def own_place(engine: str) -> Iterator[Place]:
    """A place for one run; servers keep what they acknowledge as in production, and are gone afterwards."""
    match engine:
        case "sqlite":
            yield Place(engine)
        case "postgres":
            with postgres_server(fsync=True) as postgres:
                yield Place(engine, postgres)
        case "redis":
            # With `everysec` Redis answers before it writes while an fsync is under way, and a SIGKILL then takes
            # acknowledged writes away (461 were counted after one of four kills).
            with redis_server("--appendfsync", "always") as server:
                yield Place(engine, server)
        case "redis-cluster":
            with redis_cluster(*_CLUSTERED, replicas=1) as cluster:
                yield Place(engine, ClusterNode(cluster))
        case _:
            raise ValueError(f"no engine is called {engine!r}")


def _terminate_backends(url: str, rng: random.Random) -> str:
    """Cut some connections from the server's side, perhaps in the middle of a transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s",
            [rng.randint(1, 4)],
        )
    return "connections closed by the server"


def _kill_clients(url: str, rng: random.Random) -> str:
    """Cut some connections from the server's side."""
    with redis.Redis.from_url(url, protocol=3) as client:
        mine = client.client_id()
        others = [str(one["id"]) for one in client.client_list() if int(one["id"]) != mine]
        for number in rng.sample(others, min(rng.randint(1, 4), len(others))):
            with suppress(redis.ResponseError):  # Gone by itself meanwhile.
                client.client_kill_filter(_id=number)
    return "connections closed by the server"


def _flush_scripts(url: str, rng: random.Random) -> str:
    """Have the server forget every script."""
    with redis.Redis.from_url(url, protocol=3) as client:
        client.script_flush()
    return "script caches flushed"


_DISTURBANCES: Final[dict[str, tuple[Disturbance, ...]]] = {
    "postgres": (_terminate_backends,),
    "redis": (_kill_clients, _flush_scripts),
    "redis-cluster": (_kill_clients, _flush_scripts),
}
