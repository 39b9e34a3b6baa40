"""What a server answers, as errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from everwork.engines.redis.errors import RIGHTS, loses_its_node, of_reply
from everwork.exceptions import BadConfiguration, EngineBusy, EngineUnavailable
from tests.redis.test_start import LIMITED

ROOT = Path(__file__).parents[2]
SCRIPT = "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): @user_script:12: "


@pytest.mark.parametrize(
    ("reply", "kind", "word"),
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", BadConfiguration, "refuses the password"),
        ("ERR invalid password", BadConfiguration, "refuses the password"),
        ("ERR AUTH <password> called without any password configured", BadConfiguration, "no password set"),
        ("ERR DB index is out of range", BadConfiguration, "no such database"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", BadConfiguration, "denies this user"),
        (
            SCRIPT + "@user_script: 12: The user executing the script can't run this",
            BadConfiguration,
            "denies this user",
        ),
        ("ERR ACL failure in script: User ann has no permissions", BadConfiguration, "denies this user"),
        ("OOM command not allowed when used memory > 'maxmemory'.", EngineUnavailable, "out of memory"),
        (SCRIPT + "@user_script: 12: -OOM command not allowed when used memory", EngineUnavailable, "out of memory"),
        (SCRIPT + "@user_script: 12: -READONLY You can't write", EngineUnavailable, "replica"),
        ("MOVED 1234 127.0.0.1:7001", EngineUnavailable, "another node"),
        ("ASK 1234 127.0.0.1:7001", EngineUnavailable, "is moving"),
        ("BUSY Redis is busy running a script.", EngineBusy, "SCRIPT KILL"),
        ("BUSYKEY Target key name already exists.", EngineUnavailable, "refuses: BUSYKEY"),
        ("ERR unknown command 'ZOOM', with args beginning with: 'REMOVED'", EngineUnavailable, "refuses: ERR"),
        (SCRIPT + "the lane ZOOM of the queue NOAUTH was REMOVED", RuntimeError, "a script failed"),
    ],
)
def test_a_reply_is_known_by_its_beginning(reply: str, kind: type[Exception], word: str) -> None:
    problem = of_reply(Exception(reply), "redis://h:1/0")
    assert type(problem) is kind
    assert word in str(problem)


@pytest.mark.parametrize("sign", ["READONLY", "MOVED", "CLUSTERDOWN", "MASTERDOWN"])
def test_a_node_that_has_lost_the_store_is_known_by_the_beginning_of_its_reply(sign: str) -> None:
    assert loses_its_node(Exception(f"{sign} and so on"))
    assert loses_its_node(Exception(f"{SCRIPT}@user_script: 12: -{sign} and so on"))
    assert not loses_its_node(Exception(f"ERR unknown command '{sign}'"))


def test_the_rights_that_are_advised_are_those_of_the_manual_and_of_the_tests() -> None:
    assert f"`{RIGHTS}`" in (ROOT / "docs" / "reference" / "redis.md").read_text()
    assert set(RIGHTS.replace("namespace", "everwork").split()) == {*LIMITED[2:], "resetchannels", "&{everwork}:*"}
