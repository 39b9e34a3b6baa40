"""A rejected job is done with: no list of dead letters shows it, and nothing brings it back unless it is asked for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from everwork import Everwork, State
from everwork.exceptions import Fail, Reject
from tests.app.waiting import run_one
from tests.cli.conftest import Cli
from tests.server.http.serving import JOBS, Rest, serving
from tests.server.http.ui.visiting import visiting

DEAD = "/api/v1/dead"


@pytest.fixture
async def rest(cli: Cli) -> AsyncIterator[Rest]:
    """A server on the store of the command, with one job that failed for good and one that was rejected."""
    url = f"sqlite:///{cli.file}"
    async with Everwork(url) as app:

        @app.job("fails")
        async def fails() -> None:
            raise Fail("broken")

        @app.job("rejects")
        async def rejects() -> None:
            raise Reject("nonsense")

        for type in ("fails", "rejects"):
            assert (await run_one(app, type)).state is State.FAILED
    async with serving(url) as server:
        yield server


def groups(answer: dict[str, list[dict[str, object]]]) -> list[object]:
    return [group["error"] for group in answer["groups"]]


async def test_rejected_jobs_are_listed_only_when_they_are_asked_for(rest: Rest, cli: Cli) -> None:
    found = await rest.ok("GET", DEAD)
    assert (groups(found), found["rejected"]) == (["broken"], 1)
    found = await rest.ok("GET", f"{DEAD}?rejected=true")
    assert (groups(found), found["rejected"]) == (["nonsense"], 0)
    told = cli("dead", "list")
    assert ("broken" in told.out, "nonsense" in told.out) == (True, False)
    assert told.err == "everwork: 1 rejected job is not included; use --rejected to see them\n"
    assert groups(cli("dead", "list", "--rejected", "--json").json) == ["nonsense"]
    # The counts tell of both, and the job itself says what it is.
    assert sum(count.jobs for count in await rest.service.count() if count.state is State.FAILED) == 2
    [job] = [job for job in (await rest.ok("GET", f"{JOBS}?state=failed"))["jobs"] if job["rejected"]]
    assert job["last_error"] == "nonsense"


async def test_the_dashboard_shows_rejected_jobs_apart(rest: Rest) -> None:
    async with visiting(rest) as visitor:
        page = await visitor.page("/ui/dead")
        assert ("broken" in page, "nonsense" in page) == (True, False)
        assert "1 rejected job is not included" in page
        [href] = re.findall(r'<a href="([^"]+)">Show rejected jobs', page)
        page = await visitor.page(href)
        assert ("broken" in page, "nonsense" in page) == (False, True)
        assert "1 rejected job in 1 error group" in page
        question = await visitor.post("/ui/dead/sure", href, act="requeue", rejected="1")
        assert "that were rejected" in question.text
        overview = await visitor.page("/ui")
        assert ("broken" in overview, "nonsense" in overview) == (True, False)


@pytest.mark.parametrize("change", ["requeue", "purge"])
async def test_a_filter_meets_rejected_jobs_only_when_they_are_asked_for(rest: Rest, cli: Cli, change: str) -> None:
    assert (await rest.ok("POST", f"{DEAD}/{change}", {"all": True, "dry_run": True}))["matched"] == 1
    await rest.refused(404, "POST", f"{DEAD}/{change}", {"type": "rejects"})
    assert (await rest.ok("POST", f"{DEAD}/{change}", {"rejected": True, "dry_run": True}))["matched"] == 1
    done = {"requeue": "requeued", "purge": "deleted"}[change]
    assert cli("dead", change, "--all", "--dry-run").out == f"1 dead letter would be {done}\n"
    assert (
        cli("dead", change, "--rejected", *(["--yes"] if change == "purge" else [])).out == f"1 rejected job {done}\n"
    )
    assert (await rest.ok("GET", f"{DEAD}?rejected=true"))["groups"] == []


async def test_a_requeue_of_all_failed_jobs_leaves_rejected_ones_where_they_are(rest: Rest) -> None:
    assert await rest.ok("POST", f"{JOBS}/requeue", {"all": True}) == {"matched": 1, "changed": 1}


async def test_a_rejection_without_any_reason_still_says_what_happened(cli: Cli) -> None:
    async with Everwork(f"sqlite:///{cli.file}") as app:

        @app.job("rejects")
        async def rejects() -> None:
            raise Reject

        assert (await run_one(app, "rejects")).last_error == "rejected by the worker"
