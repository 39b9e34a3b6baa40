"""One server of each kind per test run, for all its processes; or the user's own, named by environment variable.

Who needs a server first starts a keeper, a process that starts the server, and ends it with the run. The run is known
by `EVERWORK_TEST_RUN`, a folder that the tests' main process makes and names to all others. By hand:
`python -m tests.shared_servers postgres redis redis-cluster` starts servers and shows where they are.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.servers import RedisCluster, Server, postgres_server, redis_cluster, redis_server

RUN: Final = "EVERWORK_TEST_RUN"
OWN: Final = {
    "postgres": "EVERWORK_TEST_POSTGRES",
    "redis": "EVERWORK_TEST_REDIS",
    "redis-cluster": "EVERWORK_TEST_REDIS_CLUSTER",
}
"""The variables that name a user's own servers."""

_ROOT: Final = Path(__file__).resolve().parents[1]


def shared_url(kind: str) -> str:
    """Where the run's `postgres`, `redis` or `redis-cluster` is; the first who asks has it started."""
    own = os.environ.get(OWN[kind])
    if own:
        return own
    folder = run_folder()
    note = folder / f"{kind}.json"
    with (folder / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            _start_keeper(kind, note)
    return str(json.loads(note.read_text())["url"])


def begin_run() -> None:
    """Become the main process of a run, unless it has one already."""
    if RUN not in os.environ:
        folder = tempfile.mkdtemp(prefix=f"everwork-run-{os.getpid()}-")
        os.environ[RUN] = folder


def end_run() -> None:
    """Stop the servers of this process's run; whoever runs in another's leaves them alone."""
    if RUN not in os.environ or _main_process(run_folder()) != os.getpid():
        return
    for note in run_folder().glob("*.json"):
        keeper = json.loads(note.read_text())["keeper"]
        with suppress(ProcessLookupError):
            watched = os.pidfd_open(keeper)
            os.kill(keeper, signal.SIGTERM)
            select.select([watched], [], [], 30)
            os.close(watched)
    shutil.rmtree(run_folder(), ignore_errors=True)
    del os.environ[RUN]


def run_folder() -> Path:
    """Where the processes of the run leave notes for each other."""
    begin_run()
    return Path(os.environ[RUN])


def _main_process(folder: Path) -> int:
    return int(folder.name.split("-")[2])


def _start_keeper(kind: str, note: Path) -> None:
    """The keeper lives in a session of its own: a Ctrl-C is for the tests, which may still need their servers."""
    with (note.parent / f"{kind}.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.shared_servers", "--keep", kind, str(note)],
            cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert keeper.stdout is not None
    keeper.stdout.read()  # Ends when the server serves, or the keeper has died.
    assert note.exists(), f"{kind} does not start:\n{(note.parent / f'{kind}.log').read_text()}"


def _keep(kind: str, note: Path) -> None:
    """Start a server and end it with the run's main process, or when told to."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main = os.pidfd_open(_main_process(note.parent))
    server = start(kind)
    try:
        told: dict[str, Any] = {"url": server.url, "keeper": os.getpid()}
        partial = note.with_suffix(".partial")
        partial.write_text(json.dumps(told))
        partial.rename(note)
        _close_standard_output()
        select.select([main], [], [])
        shutil.rmtree(note.parent, ignore_errors=True)
    finally:
        server.remove()


def start(kind: str) -> Server | RedisCluster:
    """A server of a kind, as the ordinary tests use it."""
    match kind:
        case "postgres":
            return postgres_server(version=int(os.environ.get("EVERWORK_TEST_POSTGRES_VERSION", "18")))
        case "redis":
            return redis_server()
        case "redis-cluster":
            return redis_cluster()
        case _:
            raise ValueError(f"no server is called {kind!r}; there are {', '.join(OWN)}")


def _close_standard_output() -> None:
    """Tell who waits that the server serves."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


def _by_hand(kinds: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    servers = []
    try:
        for kind in kinds:
            servers.append(start(kind))
            print(f"{OWN[kind]}={servers[-1].url}", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        for server in servers:
            server.remove()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--keep"]:
        _keep(sys.argv[2], Path(sys.argv[3]))
    else:
        _by_hand(sys.argv[1:] or list(OWN))
