"""A real server process, which tests can stop, kill and start again on the same ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO, Any

import trustme

from tests.forked import ForkedPopen

KEY = "ek-tests-0123456789abcdef"
DEADLINE_S = 30.0


class ServerProcess:
    """`everwork serve` on a store of the test's own."""

    def __init__(self, url: str, folder: Path, *flags: str, key: str | None = KEY) -> None:
        self.url = url
        self._folder = folder
        self._flags = flags
        self._key = key
        self._ports = ("0", "0")
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self.facts: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Where gRPC is spoken."""
        return f"127.0.0.1:{self.facts['grpc_port']}"

    @property
    def grpc_url(self) -> str:
        """What clients take."""
        return f"grpc://{self.address}"

    @property
    def http_url(self) -> str:
        """Where REST is spoken."""
        return f"http://127.0.0.1:{self.facts['http_port']}"

    def start(self) -> ServerProcess:
        """Start, and wait until it listens; again on the same ports, if it ran before."""
        grpc_port, http_port = self._ports
        self._log = (self._folder / "server.log").open("a")
        self._process = ForkedPopen(
            [
                "everwork",
                "serve",
                "--engine",
                self.url,
                "--grpc-port",
                grpc_port,
                "--http-port",
                http_port,
                "--json",
                *self._flags,
            ],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the server did not start: {(self._folder / 'server.log').read_text()}"
        self.facts = json.loads(line)
        self._ports = (str(self.facts["grpc_port"]), str(self.facts["http_port"]))
        return self

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Stop as an operator does; the exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._log is not None
        try:
            code = self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()
            self._log.close()
        self._process = None
        return code

    def _environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("EVERWORK_")}
        return mine if self._key is None else mine | {"EVERWORK_API_KEY": self._key}


def tls_files(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """A new authority's certificate, and the flags of a server on 127.0.0.1 that it vouches for."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    flags = ("--tls-certificate", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    return folder / "ca.pem", flags


def a_free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
