"""everwork keys, audit: what is typed, what is kept, what is shown once."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import pytest

from everwork.engines.open import open_engine
from everwork.service.access.keys import KeyRing
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

BAD_KEYS = {
    "no name": (["--permission", "jobs"], "missing option '--name'"),
    "an empty name": (["--name", "", "--permission", "jobs"], "name: must have 1 to 255 characters, not 0"),
    "no permission": (["--name", "ci"], "permissions: must be a list of at least one of *, jobs, jobs:read, admin"),
    "an unknown permission": (
        ["--name", "ci", "--permission", "root"],
        "permissions: must be one of *, jobs, jobs:read, admin, tick, not 'root'",
    ),
    "an empty tenant": (["--name", "ci", "--permission", "jobs", "--tenant", ""], "tenants: must have 1 to 255"),
    "an expiry that is none": (
        ["--name", "ci", "--permission", "jobs", "--expires", "soon"],
        "expires: must be a duration such as 90d, 12h or 30m, or a time with a zone (RFC 3339)",
    ),
    "an expiry of nothing": (["--name", "ci", "--permission", "jobs", "--expires", "0d"], "expires_at: must be in the"),
    "an expiry that is over": (
        ["--name", "ci", "--permission", "jobs", "--expires", "2001-01-01T00:00:00Z"],
        "expires_at: must be in the future",
    ),
    "an expiry after the end of time": (
        ["--name", "ci", "--permission", "jobs", "--expires", "999999999d"],
        "expires_at: must be a whole number from 0 to",
    ),
    "a rate of nothing": (["--name", "ci", "--permission", "jobs", "--rate", "0"], "rate_per_second: must be a number"),
    "a rate that is a word": (["--name", "ci", "--permission", "jobs", "--rate", "fast"], "rate_per_second: must be a"),
}


@pytest.fixture
def url(engine_name: str, tmp_path: Path) -> str:
    """A store that nobody has opened yet."""
    return url_of(engine_name, tmp_path)


async def test_a_key_is_made_shown_once_listed_and_revoked_on_every_engine(cli: Cli, url: str) -> None:
    made = cli("keys", "create", "--name", "ci", "--permission", "jobs", "--json", "--engine", url).json
    listed = cli("keys", "list", "--engine", url).out
    assert made["id"] in listed
    assert made["key"].split("_", 2)[2] not in listed
    engine = open_engine(url)
    await engine.open()
    ring = KeyRing(engine)
    await ring._refresh()
    assert ring.authenticate(made["key"]).name == "ci"
    assert cli("keys", "revoke", made["id"], "--engine", url).out == f"revoked API key {made['id']} (ci)\n"
    await ring._refresh()
    assert not ring.is_live(ring._known[made["id"]].principal)
    await engine.close()


def test_a_key_is_what_was_asked_for(cli: Cli) -> None:
    options = (
        "--permission jobs --permission admin --tenant acme --tenant globex --expires 2090-01-31T12:00:00Z --rate 2.5"
    )
    made = cli("keys", "create", "--name", "build server", *options.split(), "--json").json
    text = made.pop("key")
    [listed] = cli("keys", "list", "--json").json["keys"]
    assert listed == made
    assert text.startswith(f"ew_{made['id']}_")
    assert (made["name"], made["permissions"], made["tenants"]) == (
        "build server",
        ["jobs", "admin"],
        ["acme", "globex"],
    )
    assert (made["expires_at"], made["rate_per_second"]) == ("2090-01-31T12:00:00.000Z", 2.5)
    assert (made["state"], made["revoked_at"]) == ("live", None)


def test_for_people_a_new_key_stands_on_a_line_of_its_own(cli: Cli) -> None:
    answer = cli("keys", "create", "--name", "ci", "--permission", "*", "--expires", "90d")
    [line] = [line for line in answer.out.splitlines() if "ew_" in line]
    assert (answer.code, answer.err, len(line.split())) == (0, "", 1)
    assert "(ci: *; all tenants; expires in 90d)" in answer.out
    assert answer.out.endswith("Store it now: it is not shown again.\n")
    assert line.strip() not in cli("keys", "list").out + cli("audit").out + cli("doctor").out


@pytest.mark.parametrize("mistake", BAD_KEYS)
def test_a_key_with(cli: Cli, mistake: str) -> None:
    arguments, complaint = BAD_KEYS[mistake]
    answer = cli("keys", "create", *arguments)
    assert answer.complaint.startswith(complaint)
    assert (answer.code, list(cli.folder.iterdir())) == (2, [])


def test_a_key_that_is_not_there_cannot_be_revoked(cli: Cli) -> None:
    cli("keys", "create", "--name", "ci", "--permission", "jobs")
    answer = cli("keys", "revoke", "4f6a1c02b9d3")
    assert (answer.code, answer.complaint) == (1, "API key '4f6a1c02b9d3' not found")


def test_without_any_key_the_list_says_how_to_make_one(cli: Cli) -> None:
    cli("jobs", "create", "x")
    assert cli("keys", "list").out.startswith("no API keys; create one: everwork keys create --name ")
    assert "a server needs one: everwork keys create" in cli("doctor").out


def test_the_audit_log_names_the_person_at_the_terminal(cli: Cli) -> None:
    made = cli("keys", "create", "--name", "ci", "--permission", "jobs", "--json").json
    cli("keys", "revoke", made["id"])
    cli("types", "pause", "email-send")
    entries = cli("audit", "--json").json["entries"]
    assert [(one["action"], one["target"]) for one in entries] == [
        ("types.pause", "email-send"),
        ("keys.revoke", made["id"]),
        ("keys.create", made["id"]),
    ]
    assert {(one["who"], one["origin"]) for one in entries} == {(getpass.getuser(), "cli")}
    shown = cli("audit").out
    assert all(one["action"] in shown for one in entries)


def test_the_audit_log_is_read_in_pages(cli: Cli) -> None:
    for type in ("a", "b", "c"):
        cli("types", "policy", type, "--base", "1")
    first = cli("audit", "--limit", "2", "--json").json
    rest = cli("audit", "--limit", "2", "--cursor", first["next"], "--json").json
    assert [one["target"] for one in first["entries"] + rest["entries"]] == ["c", "b", "a"]
    assert rest["next"] is None
    assert f"more: everwork audit --limit 2 --cursor {first['next']}" in cli("audit", "--limit", "2").out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--limit", "0"], "limit: must be a whole number from 1 to 1000, not 0"),
        (["--limit", "all"], "limit: must be a whole number from 1 to 1000, not 'all'"),
        (["--cursor", ""], "cursor: must have 1 to 255 characters, not 0"),
    ],
)
def test_an_audit_page_that_makes_no_sense_is_refused(cli: Cli, arguments: list[str], complaint: str) -> None:
    cli("jobs", "create", "x")
    answer = cli("audit", *arguments)
    assert (answer.code, answer.complaint) == (2, complaint)


def test_an_empty_audit_log_is_no_mistake(cli: Cli) -> None:
    cli("jobs", "create", "x")
    assert cli("audit").out == "no audit entries yet\n"


def test_doctor_counts_keys_and_warns_of_those_that_end_soon(cli: Cli) -> None:
    soon = cli("keys", "create", "--name", "soon", "--permission", "jobs", "--expires", "13d", "--json").json
    later = cli("keys", "create", "--name", "later", "--permission", "jobs", "--expires", "15d", "--json").json
    cli("keys", "revoke", cli("keys", "create", "--name", "old", "--permission", "*", "--json").json["id"])
    report = cli("doctor", "--json").json
    assert report["api_keys"] == {"live": 2, "expired": 0, "revoked": 1}
    [note] = report["notes"]
    assert soon["id"] in note["text"]
    assert later["id"] not in note["text"]
