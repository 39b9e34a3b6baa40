"""FailJob and keys of other systems: what has not the form of a key is a job that does not exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from everwork.core.limits import KEY_MAX
from tests.cli.conftest import Cli
from tests.server.grpc.running import TYPE, RunningServer, refused, running_server
from tests.server.http.serving import JOBS, serving
from tests.stores import url_of

FOREIGN = "atom-jobkey12345"
HOSTILE = {
    "9" * 5_000: f"'{'9' * 60}...'",
    "1\n\0": r"'1\n\x00'",
    "٣": "'٣'",
    "-1": "'-1'",
    "007": "'007'",
    str(KEY_MAX + 1): f"'{KEY_MAX + 1}'",
    "1'; DROP TABLE ew_job; --": '"1\'; DROP TABLE ew_job; --"',
}
"""Keys, and how the refusal repeats them."""
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("CompleteJob", {}),
    ("FailJob", {"retries": 2, "error_message": "Connection timeout"}),
    ("ThrowError", {"error_code": "E"}),
    ("UpdateJobRetries", {"retries": 1}),
    ("UpdateJobTimeout", {"timeout": 1_000}),
    ("CancelJob", {}),
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server(url_of("sqlite", tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize(("name", "fields"), CHANGES)
async def test_a_foreign_key_is_not_found_in_every_call_that_changes_a_job(
    server: RunningServer, name: str, fields: dict[str, Any]
) -> None:
    for key in (FOREIGN, "4711"):
        answer = await refused(server.call(name, job_key=key, **fields))
        assert answer == (StatusCode.NOT_FOUND, f"Job '{key}' not found or already completed")


async def test_get_job_does_not_find_it_either(server: RunningServer) -> None:
    assert await refused(server.call("GetJob", job_key=FOREIGN)) == (StatusCode.NOT_FOUND, f"Job '{FOREIGN}' not found")


async def test_failing_a_finished_job_says_the_same_with_success_false(server: RunningServer) -> None:
    done = await server.an_activated_job()
    await server.call("CompleteJob", job_key=done.job_key)
    dead = await server.an_activated_job()
    await server.call("FailJob", job_key=dead.job_key, retries=0, error_message="no such card")
    for key in (done.job_key, dead.job_key):
        answer = await server.call("FailJob", job_key=key, retries=2, error_message="Connection timeout")
        assert (answer.success, answer.message) == (False, f"Job '{key}' not found or already completed")


async def test_no_key_at_all_is_an_invalid_argument(server: RunningServer) -> None:
    for name, fields in CHANGES:
        assert await refused(server.call(name, **fields)) == (StatusCode.INVALID_ARGUMENT, "job_key: is required")


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: ascii(key[:20]))
async def test_hostile_keys_are_repeated_within_bounds(server: RunningServer, key: str) -> None:
    job = await server.an_activated_job()
    status, details = await refused(server.call("FailJob", job_key=key, retries=2))
    assert (status, details) == (StatusCode.NOT_FOUND, f"Job {HOSTILE[key]} not found or already completed")
    assert [one.job_key for one in (await server.call("ListJobs", job_type=TYPE)).jobs] == [job.job_key]


async def test_rest_answers_404(tmp_path: Path) -> None:
    async with serving(url_of("sqlite", tmp_path)) as rest:
        for method, path in (("GET", ""), ("PUT", "/complete"), ("PUT", "/fail"), ("PUT", "/cancel"), ("DELETE", "")):
            problem = await rest.refused(404, method, f"{JOBS}/{FOREIGN}{path}")
            assert (problem["code"], problem["detail"]) == ("job_not_found", f"Job '{FOREIGN}' not found")


def test_the_command_line_ends_as_for_a_job_that_does_not_exist(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    created = cli("jobs", "create", TYPE, "--json").json["key"]
    for key in (FOREIGN, "4711"):
        answer = cli("jobs", "get", key)
        assert (answer.code, answer.complaint) == (1, f"Job '{key}' not found")
    answer = cli("jobs", "cancel", FOREIGN, created)
    assert (answer.code, answer.err) == (1, f"everwork: Job '{FOREIGN}' not found\n")
    assert answer.out == f"job {created}: cancelled (was pending)\n"
