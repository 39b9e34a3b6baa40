"""A server in its own process, and what can be measured from outside: memory, descriptors, threads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KEY: Final = "the-key-of-the-tests"
"""A key with all permissions, from the environment of the server."""
MIB: Final = 1_048_576


class Served:
    """A running server process."""

    def __init__(self, process: subprocess.Popen[str], grpc_port: int, http_port: int, log: Path) -> None:
        self.process = process
        self.grpc_port = grpc_port
        self.http_port = http_port
        self._log = log

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return self._log.read_text()

    @property
    def rss_bytes(self) -> int:
        """The current memory of the process."""
        return self._status("VmRSS") * 1_024

    @property
    def peak_rss_bytes(self) -> int:
        """The peak memory of the process so far, which includes peaks between measurements."""
        return self._status("VmHWM") * 1_024

    @property
    def threads(self) -> int:
        """How many threads the process has."""
        return self._status("Threads")

    @property
    def descriptors(self) -> int:
        """How many files and sockets the process has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        assert found is not None, f"the server has ended with code {self.process.poll()}"
        return int(found[1])


@contextmanager
def served(
    folder: Path, *options: str, engine: str | None = None, open_files_max: int | None = None, **settings: str
) -> Iterator[Served]:
    """Run `everwork serve` with these options; settings become environment variables (`max_connections="100"`)."""
    store = f"sqlite:///{folder / 'served.db'}" if engine is None else engine
    command = [sys.executable, "-m", "everwork", "serve", "--engine", store, "--grpc-port", "0", "--http-port", "0"]
    limited = [] if open_files_max is None else ["sh", "-c", f'ulimit -n {open_files_max} && exec "$@"', "sh"]
    own = {f"EVERWORK_{name.upper()}": value for name, value in {"api_key": KEY, **settings}.items()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERWORK_")}
    log = folder / "served.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*limited, *command, "--json", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=environment | own,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the server did not start: {log.read_text()}"
            facts = json.loads(line)
            yield Served(process, facts["grpc_port"], facts["http_port"], log)
        finally:
            process.kill()
