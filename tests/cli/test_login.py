"""The way into the dashboard from a terminal: the link of a server that starts, and that of everwork login."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from typing import TYPE_CHECKING

import httpx

from tests.cli.conftest import COMMAND, DEADLINE_SECONDS
from tests.cli.test_serve import PORTS, started

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

EVERYWHERE = 'host = "0.0.0.0"\nhttp_port = 1\n'


def status_of(url: str) -> int:
    """How a browser fares that follows a link: 303 is in, 401 is not."""
    site, _, token = url.partition("/ui/login?token=")
    answer = httpx.post(f"{site}/ui/login", data={"token": token}, timeout=DEADLINE_SECONDS)
    return answer.status_code


def test_a_server_on_this_host_has_a_link_for_whoever_starts_it_and_login_makes_more(cli: Cli) -> None:
    with started(cli, "up") as (_, facts):
        assert facts["login_url"].startswith(f"{facts['dashboard_url']}/login?token=")
        assert [status_of(facts["login_url"]) for _ in range(2)] == [303, 401]
        site = f"http://127.0.0.1:{facts['http_port']}"
        answer = cli("login", "--url", f"{site}/any/path?x")
        assert (answer.code, answer.err) == (0, "")
        assert status_of(answer.out.strip()) == 303
        made = cli("login", "--url", site, "--json").json
        assert (set(made), made["url"].startswith(site)) == ({"url", "expires_at"}, True)
        opened = cli("sessions", "list", "--json").json["sessions"]
        assert [(one["key_id"], one["origin"]) for one in opened] == [("login-link", "127.0.0.1")] * 2
        ended = cli("sessions", "end", opened[0]["id"])
        assert ended.out == f"ended session {opened[0]['id']} ({opened[0]['opened_by']})\n"
        assert opened[1]["id"] in cli("sessions", "list").out
        assert cli("sessions", "end", "--all").out == "ended 1 session\n"
        assert (cli("sessions", "list").out, status_of(made["url"])) == ("no open sessions\n", 401)
        assert cli("sessions", "end").err == "everwork: id: is required, unless --all is given\n"
        noted = [(one["action"], one["origin"]) for one in cli("audit", "--json").json["entries"]]
    assert noted.count(("ui.link", "cli")) == 3
    assert ("ui.login", "127.0.0.1") in noted


def test_a_link_is_shown_at_a_terminal(cli: Cli) -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([COMMAND, "up", *PORTS], cwd=cli.folder, env=cli.environment(), stdout=slave) as process:
        os.close(slave)
        shown = ""
        while "gRPC" not in shown:
            shown += os.read(master, 4_096).decode()
        [link] = re.findall(r"  Dashboard  (http://127.0.0.1:\d+/ui/login\?token=\S+)", shown)
        assert status_of(link) == 303
        process.terminate()
        process.wait(DEADLINE_SECONDS)
    os.close(master)


def test_login_finds_the_server_by_the_settings_and_says_if_none_is_there(cli: Cli) -> None:
    cli("keys", "create", "--name", "first", "--permission", "*")
    (cli.folder / "everwork.toml").write_text(EVERYWHERE)
    answer = cli("login")
    assert answer.out.startswith("http://127.0.0.1:1/ui/login?token=")
    assert answer.err == "everwork: no server is listening at http://127.0.0.1:1; if it runs elsewhere, use --url\n"
    assert answer.code == 0
    assert cli("login", EVERWORK_AUTH="off", EVERWORK_HOST="::1").out == "http://[::1]:1/ui\n"


def test_a_login_that_cannot_be_is_told_in_one_line(cli: Cli) -> None:
    assert "does not exist" in cli("login").complaint
    cli("keys", "create", "--name", "first", "--permission", "*")
    assert cli("login", "--url", "ftp://x").complaint.startswith("url: must start with http:// or https://")
    assert cli("login", EVERWORK_HTTP_PORT="0").complaint.endswith("name the server with --url")
