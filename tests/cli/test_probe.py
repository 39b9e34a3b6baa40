"""everwork probe: one line and an exit code for whoever restarts containers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from tests.app.waiting import until
from tests.cli.conftest import DEADLINE_SECONDS
from tests.cli.test_serve import started
from tests.servers import redis_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Answer, Cli

MANAGER = """
import os
from everwork import AbstractWorker, Process, ProcessManager, SqliteBackend, SqliteBroker, WorkerSettings

class Greeter(AbstractWorker):
    @classmethod
    def _get_settings(cls):
        return WorkerSettings(title="greeter", sources={"greet"})

    async def startup(self):
        if os.path.exists("broken"):
            raise RuntimeError("no mail server")

    async def __call__(self):
        pass

url = "sqlite:///everwork.db"
manager = ProcessManager(
    uuid="shop", processes=[Process(workers=[Greeter])], backend=SqliteBackend(url), broker=SqliteBroker(url)
)
"""
LOADED = """
import sys
from everwork.cli.main import run
run(["probe", "--address", sys.argv[1]])
heavy = ("grpc", "starlette", "structlog", "sqlite3", "everwork.server", "everwork.service")
print([name for name in heavy if name in sys.modules])
"""


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A listener that gives every caller this answer; None: it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.recv(1_000)
                if answer is None:
                    caller.recv(1)  # Until the caller goes.
                else:
                    caller.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def problem(answer: Answer) -> str:
    assert answer.code == 1, answer
    return answer.complaint


def test_a_server_is_ready_by_its_settings_by_http_and_by_grpc(cli: Cli) -> None:
    with started(cli, "up") as (_, facts):
        http = f"http://127.0.0.1:{facts['http_port']}"
        grpc = f"grpc://127.0.0.1:{facts['grpc_port']}"
        by_settings = cli("probe", EVERWORK_HTTP_PORT=str(facts["http_port"]), EVERWORK_HOST="0.0.0.0")
        assert (by_settings.code, by_settings.out, by_settings.err) == (0, f"ready: {http}\n", "")
        assert cli("probe", "--address", grpc).out == f"ready: {grpc}\n"
        assert cli("probe", "--address", grpc, "--live").out == f"alive: {grpc}\n"
        assert cli("probe", "--address", http, "--json").json == {"target": http, "ready": True, "problem": None}


async def test_a_server_whose_engine_is_away_is_alive_but_not_ready(cli: Cli) -> None:
    with redis_server("--appendonly", "yes") as redis, started(cli, "up", "--engine", redis.url) as (_, facts):
        http = f"http://127.0.0.1:{facts['http_port']}"
        grpc = f"grpc://127.0.0.1:{facts['grpc_port']}"
        redis.kill()
        await until(lambda: cli("probe", "--address", http).code == 1, DEADLINE_SECONDS)
        assert problem(cli("probe", "--address", http)).startswith(f"not ready: {http}: the engine ")
        assert problem(cli("probe", "--address", grpc)) == f"not ready: {grpc}: its health service is not SERVING"
        assert cli("probe", "--address", http, "--live").out == f"alive: {http}\n"
        assert cli("probe", "--address", grpc, "--live").out == f"alive: {grpc}\n"


def test_what_does_not_answer_is_not_ready_and_not_waited_for(cli: Cli) -> None:
    with answering(None) as silent:
        assert problem(cli("probe", "--address", silent, "--timeout", "0.2")).startswith(f"not ready: {silent}: ")
    assert problem(cli("probe", "--address", silent)) == f"not ready: {silent}: Connection refused"
    grpc = silent.replace("http", "grpc")
    assert problem(cli("probe", "--address", grpc)).startswith(f"not ready: {grpc}: UNAVAILABLE: ")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "status 200"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"220 mail.example.org ESMTP\r\n", "BadStatusLine"),
        (b"", "RemoteDisconnected"),
    ],
)
def test_another_program_at_the_address_is_not_taken_for_a_server(cli: Cli, answer: bytes, reason: str) -> None:
    with answering(answer) as address:
        said = problem(cli("probe", "--address", address))
    assert said == f"not ready: {address}: not an Everwork server: {reason}"


def test_over_tls_one_s_own_server_is_asked_whatever_name_its_certificate_has(cli: Cli, tmp_path: Path) -> None:
    files = _certificate(tmp_path, "jobs.example.org")
    with _serving_tls(cli, files) as port:
        by_settings = cli(
            "probe",
            EVERWORK_HTTP_PORT=str(port),
            EVERWORK_TLS_CERTIFICATE=files["cert"],
            EVERWORK_TLS_KEY=files["key"],
        )
        assert by_settings.out == f"ready: https://127.0.0.1:{port}\n"
        stranger = problem(cli("probe", "--address", f"https://127.0.0.1:{port}"))
        assert "CERTIFICATE_VERIFY_FAILED" in stranger
        wrong_name = problem(cli("probe", "--address", f"https://127.0.0.1:{port}", "--tls-ca", files["ca"]))
        assert "jobs.example.org" in wrong_name or "127.0.0.1" in wrong_name


async def test_a_manager_is_ready_when_its_workers_have_started(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(MANAGER)
    arguments = ["probe", "--manager", "shop"]
    here = f"manager shop on {socket.gethostname()}"
    assert f"not ready: {here}: file {cli.file} does not exist" in problem(cli(*arguments))
    with cli.start("worker", "shop") as process:
        await until(lambda: cli(*arguments).code == 0, DEADLINE_SECONDS)
        assert cli(*arguments).out == f"ready: {here}\n"
        process.terminate()
        process.communicate(timeout=60)
    assert problem(cli(*arguments)) == f"not ready: {here}: not running on this host"


async def test_a_manager_with_a_worker_that_does_not_start_is_not_ready(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(MANAGER)
    (cli.folder / "broken").touch()
    with cli.start("worker", "shop") as process:
        try:
            await until(
                lambda: "RuntimeError: no mail server" in cli("probe", "--manager", "shop").err, DEADLINE_SECONDS
            )
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--address", "ftp://host"], "address: must look like http://host:27555"),
        (["--address", "host:27555"], "address: must look like http://host:27555"),
        (["--address", "http://host:0"], "address: must look like http://host:27555"),
        (["--address", "http://host:99999"], "address: must look like http://host:27555"),
        (["--address", "http://user@host"], "address: must look like http://host:27555"),
        (["--address", "http://host/readyz"], "address: must look like http://host:27555"),
        (["--timeout", "0"], "timeout: must be a number from 0.1 to 60"),
        (["--manager", "shop", "--live"], "manager: cannot be combined with"),
        (["--address", "https://localhost:1", "--tls-ca", "nowhere.pem"], "tls_ca, tls_certificate, tls_key: cannot"),
    ],
)
def test_a_mistake_is_told_apart_from_a_server_that_is_not_ready(
    cli: Cli, arguments: list[str], complaint: str
) -> None:
    answer = cli("probe", *arguments)
    assert (answer.code, answer.complaint[: len(complaint)]) == (2, complaint)


def test_a_named_address_is_probed_without_loading_engines_or_server(cli: Cli) -> None:
    with started(cli, "up") as (_, facts):
        command = [sys.executable, "-c", LOADED, f"http://127.0.0.1:{facts['http_port']}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == "[]"


@contextmanager
def _serving_tls(cli: Cli, files: dict[str, str]) -> Iterator[Any]:
    settings = ["--tls-certificate", files["cert"], "--tls-key", files["key"]]
    cli("keys", "create", "--name", "first", "--permission", "*")
    with started(cli, "serve", *settings) as (_, facts):
        yield facts["http_port"]


def _certificate(folder: Path, name: str) -> dict[str, str]:
    authority = trustme.CA()
    issued = authority.issue_cert(name)
    files = {kind: str(folder / f"{kind}.pem") for kind in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    issued.private_key_pem.write_to_path(files["key"])
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    return files
