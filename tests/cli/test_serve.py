"""everwork serve and everwork up: what they print, whom they let in, and how they stop."""

from __future__ import annotations

import gc
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from everwork.cli.serving import FULL_COLLECTION_EVERY, keep_loaded_objects
from tests.app.waiting import until_sync
from tests.cli.conftest import DEADLINE_SECONDS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

PORTS = ["--grpc-port", "0", "--http-port", "0"]


@contextmanager
def started(cli: Cli, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server, and what it said of itself in JSON."""
    with cli.start(*arguments, *PORTS, "--json") as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_a_server_rarely_looks_at_all_objects_for_garbage() -> None:
    thresholds = gc.get_threshold()
    try:
        keep_loaded_objects()
        assert gc.get_freeze_count()
        ignores_it = (3, 14) <= sys.version_info < (3, 14, 5)
        assert gc.get_threshold()[2] >= FULL_COLLECTION_EVERY or ignores_it
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def status(facts: dict[str, Any], key: str) -> int:
    request = Request(f"http://127.0.0.1:{facts['http_port']}/jobs", headers={"X-API-Key": key})
    try:
        with urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_up_makes_a_key_once_serves_with_it_and_stops_cleanly(cli: Cli, stop: signal.Signals) -> None:
    with started(cli, "up") as (process, facts):
        assert status(facts, facts["api_key"]) == 200
        assert status(facts, "wrong") == 401
        process.send_signal(stop)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
        [line] = err.splitlines()
        assert ("authentication failed" in line, "wrong" in line, process.returncode) == (True, False, 0)
    with started(cli, "up") as (_, again):
        assert again["api_key"] is None
        noted = [(entry["action"], entry["origin"]) for entry in cli("audit", "--json").json["entries"]]
        assert sorted(noted) == [("keys.create", "cli"), ("ui.link", "cli"), ("ui.link", "cli")]
        assert status(again, facts["api_key"]) == 200


def test_the_server_logs_objects_if_the_settings_say_so(cli: Cli) -> None:
    (cli.folder / "everwork.toml").write_text('log_level = "info"\nlog_format = "json"\n')
    with started(cli, "up") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert all({"time", "level", "logger", "event"} <= json.loads(line).keys() for line in err.splitlines())
    assert err


def is_closed(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # It is being closed this moment.
    return False


def test_a_second_signal_does_not_wait_for_a_caller_who_never_ends(cli: Cli) -> None:
    (cli.folder / "everwork.toml").write_text("shutdown_seconds = 600\n")
    with started(cli, "up") as (process, facts):
        head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {facts['api_key']}\r\n"
        with socket.create_connection(("127.0.0.1", facts["http_port"]), DEADLINE_SECONDS) as stalled:
            stalled.sendall(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
            assert stalled.recv(100).startswith(b"HTTP/1.1 100 ")
            process.send_signal(signal.SIGTERM)
            until_sync(lambda: is_closed(facts["http_port"]))
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert stalled.recv(100).startswith(b"HTTP/1.1 503 ")
            _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, err) == (0, "")


def test_up_tells_people_where_it_is_and_shows_the_key(cli: Cli) -> None:
    answer = cli("up", *PORTS, "--seconds", "0.1")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[:2] == ["Everwork is running; press Ctrl-C to stop", ""]
    assert re.fullmatch(r"  Dashboard  http://127.0.0.1:\d+/ui/login\?token=\S+", lines[2])
    assert re.fullmatch(r"  REST API   http://127.0.0.1:\d+/docs", lines[3])
    assert re.fullmatch(r"  gRPC       127.0.0.1:\d+", lines[4])
    assert lines[5] == "  Store      sqlite:///everwork.db (accepted jobs survive a power loss)"
    assert re.fullmatch(r"  API key    ew_\w+_\S+", lines[6])
    assert lines[7:10] == [
        "",
        "The dashboard link works once. For another: everwork login",
        "The API key is shown only now. For another: everwork keys create --name ci --permission jobs",
    ]


def test_serve_refuses_to_run_when_nobody_could_call(cli: Cli) -> None:
    answer = cli("serve", *PORTS)
    assert answer.complaint == (
        "the server needs an API key: run everwork keys create --name first --permission '*', or set EVERWORK_API_KEY"
    )
    assert answer.code == 2


def test_a_key_made_by_command_opens_a_running_server_and_a_revoked_one_does_not(cli: Cli) -> None:
    first = cli("keys", "create", "--name", "first", "--permission", "jobs", "--json").json
    with started(cli, "serve") as (_, facts):
        assert status(facts, first["key"]) == 200
        second = cli("keys", "create", "--name", "second", "--permission", "jobs", "--json").json
        until_sync(lambda: status(facts, second["key"]) == 200)
        cli("keys", "revoke", second["id"])
        until_sync(lambda: status(facts, second["key"]) == 401)


def test_without_keys_only_on_loopback(cli: Cli) -> None:
    answer = cli("serve", *PORTS, "--no-auth", "--host", "0.0.0.0")
    assert answer.complaint.startswith("auth (flag --no-auth): ")
    assert "loopback" in answer.complaint
    assert answer.code == 2
    with started(cli, "serve", "--no-auth") as (_, facts):
        assert status(facts, "") == 200


def test_a_port_that_is_taken_is_told_in_one_line(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for name, other in (("grpc", "http"), ("http", "grpc")):
            answer = cli("up", f"--{name}-port", port, f"--{other}-port", "0")
            assert answer.complaint == (
                f"{name}_port: cannot listen on 127.0.0.1:{port}: Address already in use; "
                f"choose another one with --{name}-port or EVERWORK_{name.upper()}_PORT"
            )


def test_a_host_that_is_not_this_one_s_is_told_in_one_line(cli: Cli) -> None:
    answer = cli("serve", *PORTS, "--host", "192.0.2.1", EVERWORK_API_KEY="x" * 20)
    _, complaint = answer.err.splitlines()
    assert complaint == (
        "everwork: host: cannot listen on 192.0.2.1:0: Cannot assign requested address; "
        "choose another one with --host or EVERWORK_HOST"
    )


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "TLS is off and host is 192.0.2.1: API keys are accepted only from this host, and through proxies "),
        (
            ["--insecure"],
            "TLS is off, host is 192.0.2.1 and insecure is on: API keys and jobs can be read on the network",
        ),
    ],
)
def test_a_server_for_other_hosts_without_tls_warns(cli: Cli, flags: list[str], told: str) -> None:
    (cli.folder / "everwork.toml").write_text("")
    (cli.folder / "everwork.toml").chmod(0o666)
    answer = cli("serve", *PORTS, "--host", "192.0.2.1", *flags, EVERWORK_API_KEY="x" * 20)
    permissions, exposed, _ = answer.err.splitlines()
    assert permissions.startswith("everwork: warning: everwork.toml can be changed by any user of this host")
    assert exposed.startswith(f"everwork: warning: {told}")


@pytest.mark.parametrize(
    ("command", "name", "similar"),
    [
        ("serve", "REST_PORT", "EVERWORK_GRPC_PORT or EVERWORK_HTTP_PORT"),
        ("up", "PORT", "EVERWORK_GRPC_PORT or EVERWORK_HTTP_PORT"),
        ("up", "ENGINE_URL", "EVERWORK_ENGINE"),
    ],
)
def test_a_variable_that_resembles_a_setting_is_ignored_with_a_warning(
    cli: Cli, command: str, name: str, similar: str
) -> None:
    environment: dict[str, Any] = {f"EVERWORK_{name}": "1", "EVERWORK_API_KEY": "x" * 20}
    answer = cli(command, *PORTS, "--host", "192.0.2.1", **environment)
    warning, _, _ = answer.err.splitlines()
    assert warning == (
        f"everwork: warning: environment variable EVERWORK_{name} is unknown and ignored; did you mean {similar}?"
    )


def test_an_engine_that_cannot_be_reached_is_told_in_one_line(cli: Cli) -> None:
    answer = cli("serve", *PORTS, "--engine", "postgresql://nobody@127.0.0.1:1/jobs", EVERWORK_API_KEY="x" * 20)
    assert answer.complaint.startswith("cannot reach PostgreSQL 'jobs' on 127.0.0.1:1: ")
    assert answer.code == 2
