"""`max_retries` in the bodies and answers of REST: `attempts >= max_retries` is a permanent failure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.http.serving import JOBS, Rest, serving
from tests.stores import url_of


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """A server on a fresh store."""
    async with serving(url_of("sqlite", tmp_path)) as server:
        yield server


@pytest.mark.parametrize(
    "body", [{"max_retries": 3}, {"max_retries": 3, "max_attempts": 3}, {"max_retries": 3, "retries": 3}]
)
async def test_a_job_is_created_with_max_retries_and_shows_it_beside_max_attempts(
    rest: Rest, body: dict[str, Any]
) -> None:
    job = await rest.job(**body)
    for shown in (job, await rest.ok("GET", f"{JOBS}/{job['key']}"), (await rest.ok("GET", "/jobs"))["jobs"][0]):
        assert (shown["max_retries"], shown["max_attempts"], shown["retries"], shown["attempts"]) == (3, 3, 3, 0)


async def test_without_it_a_job_shows_what_its_type_allows(rest: Rest) -> None:
    job = await rest.job()
    assert job["max_retries"] == job["max_attempts"] == 5


async def test_attempts_equal_to_max_retries_are_a_permanent_failure(rest: Rest) -> None:
    job = await rest.job(max_retries=2)
    states = []
    for attempts in (1, 2):
        [leased] = (await rest.ok("POST", f"{JOBS}/activate", {"type": job["type"], "worker": "w"}))["jobs"]
        assert (leased["attempts"], leased["max_retries"]) == (attempts, 2)
        failed = await rest.ok("PUT", f"{JOBS}/{job['key']}/fail", {"error_message": "boom", "backoff_ms": 0})
        states.append((failed["state"], failed["attempts"] >= failed["max_retries"]))
    assert states == [("pending", False), ("failed", True)]
    assert (await rest.ok("POST", f"{JOBS}/activate", {"type": job["type"], "worker": "w"}))["jobs"] == []


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ({"max_retries": 3, "max_attempts": 4}, "max_attempts", "must be the same number as max_retries"),
        ({"max_retries": 3, "retries": 2}, "retries", "must be the same number as max_retries"),
        ({"max_attempts": 3, "retries": 2}, "retries", "must be the same number as max_attempts"),
        ({"max_retries": 0}, "max_retries", "must be a whole number from 1 to 100, not 0"),
        ({"max_retries": "3"}, "max_retries", "must be a whole number from 1 to 100, not '3'"),
    ],
)
async def test_contradictory_and_impossible_numbers_are_refused_by_name(
    rest: Rest, body: dict[str, Any], field: str, problem: str
) -> None:
    refused = await rest.refused(422, "POST", JOBS, {"type": "email-send", **body})
    assert (refused["field"], problem in refused["detail"]) == (field, True)
