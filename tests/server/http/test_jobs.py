"""Jobs over REST, on every engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from everwork.core.limits import KEY_MAX
from everwork.exceptions import EngineUnavailable
from everwork.server.http.app import DOCUMENT
from tests.app.waiting import until
from tests.server.http.serving import JOBS, Rest

NEVER = "9223372036854775807"


async def test_a_created_job_is_answered_in_full_and_found_again(rest: Rest) -> None:
    created = await rest("POST", JOBS, {"type": "email-send", "variables": {"to": "ada"}, "retries": 3, "priority": 7})
    job = created.json()
    assert created.status_code == 201
    assert (job["key"], job["state"], job["variables"]) == (job["key"], "pending", {"to": "ada"})
    assert (job["max_attempts"], job["retries"], job["priority"], job["tenant"]) == (3, 3, 7, "<default>")
    found = await rest.ok("GET", f"{JOBS}/{job['key']}")
    assert job.pop("deduplicated") is False
    assert {name: found[name] for name in job} == job
    assert (found["history"], found["explanation"]["reason"]) == ([], "not asked")


@pytest.mark.every_engine
async def test_every_field_of_a_new_job_is_kept(rest: Rest) -> None:
    wished: dict[str, Any] = {
        "type": "email-send",
        "variables": {"deep": [{"a": 1.5}, None, "ü"]},
        "max_attempts": 9,
        "priority": -3,
        "run_at": "2031-01-01T01:00:00+01:00",
        "tenant": "acme",
        "dedupe_key": "d-1",
        "correlation_id": "c-1",
        "limit_key": "l-1",
        "expires_at": "2032-01-01T00:00:00Z",
        "headers": {"trace": "t"},
        "timeout_ms": 1500,
    }
    job = await rest.job(**wished)
    shown = {**wished, "run_at": "2031-01-01T00:00:00.000Z", "expires_at": "2032-01-01T00:00:00.000Z"}
    assert {name: job[name] for name in wished} == shown


async def test_a_list_of_jobs_is_answered_with_a_list_in_its_order(rest: Rest) -> None:
    jobs = await rest.ok("POST", JOBS, [{"type": "a", "variables": {"n": n}} for n in range(20)])
    assert [job["variables"]["n"] for job in jobs] == list(range(20))
    assert [int(job["key"]) for job in jobs] == sorted(int(job["key"]) for job in jobs)


async def test_a_short_answer_has_keys_only(rest: Rest) -> None:
    twice = [{"type": "a", "dedupe_key": "same"}, {"type": "a", "dedupe_key": "same"}]
    first, second = await rest.ok("POST", JOBS, twice, headers={"Prefer": "return=minimal"})
    assert (first["deduplicated"], second["deduplicated"]) == (False, True)
    assert first["key"] == second["key"]


@pytest.mark.parametrize("moment", ["1969-12-31T23:59:59Z", "2030-01-01", "2030-01-01T00:00:00", "soon"])
async def test_a_refused_moment_is_called_what_it_was_sent_as(local: Rest, moment: str) -> None:
    for refusal in (
        await local.refused(422, "POST", JOBS, {"type": "a", "run_at": moment}),
        await local.refused(422, "GET", "/jobs", params={"created_after": moment}),
    ):
        assert "must be a time from 1970 to 9999 in RFC 3339" in refusal["detail"]
        assert refusal["detail"].endswith(f"not '{moment}'")


async def test_a_change_that_was_made_is_no_failure_because_the_job_cannot_be_read_again(local: Rest) -> None:
    job = await local.job()
    read = local.engine.get

    async def away(keys: Any) -> Any:
        raise EngineUnavailable("the engine is away")

    local.engine.get = away  # type: ignore[method-assign]
    assert (await local("PUT", f"{JOBS}/{job['key']}/cancel")).status_code == 204
    assert set(await local.job()) == {"key", "deduplicated"}
    local.engine.get = read  # type: ignore[method-assign]
    assert (await local.ok("GET", f"{JOBS}/{job['key']}"))["state"] == "cancelled"


async def test_the_largest_key_is_one_of_those_that_are_described(local: Rest) -> None:
    [parameter] = DOCUMENT["paths"]["/api/v1/jobs/{key}"]["get"]["parameters"]
    assert re.fullmatch(parameter["schema"]["pattern"], str(KEY_MAX))
    assert (await local.refused(404, "GET", f"{JOBS}/{KEY_MAX}"))["code"] == "job_not_found"


@pytest.mark.every_engine
async def test_a_worker_leases_and_completes_a_job(rest: Rest) -> None:
    job = await rest.leased(variables={"to": "ada", "text": "long"}, retries=3)
    assert (job["state"], job["attempt"], job["retries"], job["worker"]) == ("processing", 1, 3, "w1")
    done = await rest.ok("PUT", f"{JOBS}/{job['key']}/complete", {"attempt": 1, "variables": {"sent": True}})
    assert (done["state"], done["result"], done["variables"]["to"]) == ("completed", {"sent": True}, "ada")
    found = await rest.ok("GET", f"{JOBS}/{job['key']}")
    assert [event["kind"] for event in found["history"]] == ["complete"]


async def test_only_the_variables_asked_for_are_fetched(rest: Rest) -> None:
    await rest.job(variables={"to": "ada", "text": "long"})
    asked = {"type": "email-send", "worker": "w1", "fetch_variables": ["to", "missing"]}
    [job] = (await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"]
    assert job["variables"] == {"to": "ada"}


async def test_a_failed_attempt_is_retried_as_often_as_the_worker_says(rest: Rest) -> None:
    job = await rest.leased(retries=1, variables={"a": 1, "b": 1})
    wish = {"retries": 1, "error_message": "refused", "attempt": 1, "variables": {"b": 2}}
    failed = await rest.ok("PUT", f"{JOBS}/{job['key']}/fail", wish)
    assert (failed["state"], failed["retries"], failed["last_error"]) == ("pending", 1, "refused")
    assert failed["variables"] == {"a": 1, "b": 2}
    [again] = (await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w2"}))["jobs"]
    assert again["attempt"] == 2


async def test_a_failure_that_says_nothing_of_retries_follows_the_policy(rest: Rest) -> None:
    job = await rest.leased(retries=2)
    failed = await rest.ok("PUT", f"{JOBS}/{job['key']}/fail", {"error_message": "x", "by_policy": True})
    assert (failed["state"], failed["retries"]) == ("pending", 1)
    assert failed["run_at"] > job["run_at"]
    assert (await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w"}))["jobs"] == []


async def test_a_thrown_error_is_final_and_keeps_its_code(rest: Rest) -> None:
    job = await rest.leased(retries=5)
    wish = {"error_code": "NO_ADDRESS", "error_message": "unknown", "attempt": 1}
    thrown = await rest.ok("POST", f"{JOBS}/{job['key']}/throw-error", wish)
    assert (thrown["state"], thrown["error_code"], thrown["last_error"]) == ("failed", "NO_ADDRESS", "unknown")


@pytest.mark.parametrize(("way", "path"), [("PUT", "fail"), ("POST", "throw-error")])
async def test_the_traceback_that_a_worker_sends_is_in_the_history(rest: Rest, way: str, path: str) -> None:
    job = await rest.leased(retries=1)
    code = {"error_code": "NO"} if path == "throw-error" else {"retries": 0}
    wish = {"error_message": "boom", "traceback": "Error: boom\n    at send (a.js:1:2)", **code}
    await rest.ok(way, f"{JOBS}/{job['key']}/{path}", wish)
    [event] = (await rest.ok("GET", f"{JOBS}/{job['key']}"))["history"]
    assert (event["error"], event["traceback"]) == ("boom", "Error: boom\n    at send (a.js:1:2)")


async def test_an_outcome_of_an_old_attempt_is_refused_and_changes_nothing(rest: Rest) -> None:
    job = await rest.leased(retries=3)
    await rest.ok("PUT", f"{JOBS}/{job['key']}/fail", {"retries": 2, "attempt": 1})
    await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w2"})
    refusal = await rest.refused(409, "PUT", f"{JOBS}/{job['key']}/complete", {"attempt": 1})
    assert refusal["code"] == "lease_lost"
    assert (await rest.ok("GET", f"{JOBS}/{job['key']}"))["state"] == "processing"


async def test_completing_twice_by_the_same_attempt_is_ok_and_in_another_way_is_not(rest: Rest) -> None:
    job = await rest.leased()
    for _ in range(2):
        assert (await rest.ok("PUT", f"{JOBS}/{job['key']}/complete", {"attempt": 1}))["state"] == "completed"
    assert (await rest.refused(409, "PUT", f"{JOBS}/{job['key']}/fail", {"attempt": 1}))["code"] == "wrong_state"


async def test_a_job_that_waits_can_be_cancelled_moved_and_put_first(rest: Rest) -> None:
    job = await rest.job(delay_ms=3_600_000)
    path = f"{JOBS}/{job['key']}"
    assert (await rest.ok("PUT", f"{path}/priority", {"priority": 100}))["priority"] == 100
    moved = await rest.ok("PUT", f"{path}/reschedule", {"run_at": "2035-05-05T05:05:05.5Z"})
    assert moved["run_at"] == "2035-05-05T05:05:05.500Z"
    assert (await rest.ok("PUT", f"{path}/run-now"))["run_at"] < moved["run_at"]
    assert (await rest.ok("PUT", f"{path}/retries", {"retries": 42}))["retries"] == 42
    cancelled = await rest.ok("PUT", f"{path}/cancel", {"reason": "not needed"})
    assert (cancelled["state"], cancelled["last_error"]) == ("cancelled", "not needed")


async def test_a_lease_is_extended_by_its_holder(rest: Rest) -> None:
    job = await rest.leased()
    longer = await rest.ok("PUT", f"{JOBS}/{job['key']}/timeout", {"timeout_ms": 3_600_000, "attempt": 1})
    assert longer["deadline"] > job["deadline"]
    lost = await rest.refused(409, "PUT", f"{JOBS}/{job['key']}/timeout", {"timeout_ms": 1_000, "attempt": 7})
    assert lost["code"] == "lease_lost"


async def test_a_dead_letter_comes_back_and_a_finished_job_can_be_deleted(rest: Rest) -> None:
    dead = await rest.dead_letter()
    back = await rest.ok("PUT", f"{JOBS}/{dead['key']}/requeue")
    assert (back["state"], back["attempts"], back["last_error"]) == ("pending", 0, None)
    assert (await rest.refused(409, "DELETE", f"{JOBS}/{dead['key']}"))["code"] == "wrong_state"
    await rest.ok("PUT", f"{JOBS}/{dead['key']}/cancel")
    assert (await rest("DELETE", f"{JOBS}/{dead['key']}")).status_code == 204
    assert (await rest.refused(404, "GET", f"{JOBS}/{dead['key']}"))["code"] == "job_not_found"


async def test_a_dead_letter_comes_back_with_other_variables(rest: Rest) -> None:
    dead = await rest.dead_letter(variables={"to": "ann", "n": 1})
    path = f"{JOBS}/{dead['key']}/requeue"
    refusal = await rest.refused(422, "PUT", path, {"variables": ["to"]})
    assert (refusal["field"], refusal["detail"]) == ("variables", "variables: must be a JSON object, not ['to']")
    refusal = await rest.refused(422, "PUT", path, {"variables": {"to": "x" * 1_048_576}})
    assert "variables: must be at most 1,048,576 bytes of JSON" in refusal["detail"]
    assert (await rest.refused(422, "PUT", path, {"arguments": {}}))["field"] == "arguments"
    back = await rest.ok("PUT", path, {"variables": {"to": "ada"}})
    assert (back["state"], back["variables"]) == ("pending", {"to": "ada"})
    assert (await rest.refused(409, "PUT", path, {"variables": {}}))["code"] == "wrong_state"
    shown = await rest.ok("GET", f"{JOBS}/{dead['key']}")
    assert (shown["variables"], shown["history"][-1]["error"]) == ({"to": "ada"}, "arguments changed")


@pytest.mark.every_engine
async def test_dead_letters_come_back_by_filter(rest: Rest) -> None:
    first = await rest.dead_letter("timed out at 12:00")
    second = await rest.dead_letter("no such address")
    assert await rest.ok("POST", f"{JOBS}/requeue", {"error": "timed out"}) == {"matched": 1, "changed": 1}
    states = [(await rest.ok("GET", f"{JOBS}/{job['key']}"))["state"] for job in (first, second)]
    assert states == ["pending", "failed"]


async def test_every_dead_letter_comes_back_only_if_that_is_said(rest: Rest) -> None:
    await rest.dead_letter()
    refusal = await rest.refused(422, "POST", f"{JOBS}/requeue", {})
    assert (refusal["field"], "true" in refusal["detail"]) == ("all", True)
    assert await rest.ok("POST", f"{JOBS}/requeue", {"all": True}) == {"matched": 1, "changed": 1}


async def test_a_list_shows_what_its_filter_says(rest: Rest) -> None:
    more = {"dedupe_key": "order-7", "variables": {"to": "ann@example.org"}}
    waits = await rest.job(type="a", correlation_id="c", tenant="acme", **more)
    later = await rest.job(type="b", delay_ms=3_600_000)
    dead = await rest.dead_letter("Address UNKNOWN", type="c")

    async def keys(**query: Any) -> list[str]:
        return [job["key"] for job in (await rest.ok("GET", "/jobs", params=query))["jobs"]]

    assert await keys() == [dead["key"], later["key"], waits["key"]]
    assert await keys(type="a") == await keys(tenant="acme") == await keys(correlation_id="c") == [waits["key"]]
    assert await keys(dedupe_key="order-7") == await keys(variables='"to":"ann@') == [waits["key"]]
    assert await keys(dedupe_key="order") == await keys(variables="ANN") == []
    assert await keys(state="PENDING") == await keys(state="queued") == [later["key"], waits["key"]]
    assert await keys(state="ACTIVATABLE") == [waits["key"]]
    assert await keys(state=["error", "pending"]) == [dead["key"], later["key"], waits["key"]]
    assert await keys(worker="w1") == await keys(error="address unknown") == [dead["key"]]
    assert await keys(created_before="2020-01-01T00:00:00Z") == []
    assert len(await keys(created_after="2020-01-01T00:00:00Z")) == 3


async def test_dead_letters_are_requeued_by_dedupe_key_and_by_a_text_in_their_variables(rest: Rest) -> None:
    by_key = await rest.dead_letter(type="a", dedupe_key="order-7")
    by_text = await rest.dead_letter(type="b", variables={"to": "ann@example.org"})
    other = await rest.dead_letter(type="c")
    for wanted in ({"dedupe_key": "order-7"}, {"variables": "ann@"}):
        assert await rest.ok("POST", f"{JOBS}/requeue", wanted) == {"matched": 1, "changed": 1}
    jobs = [await rest.ok("GET", f"{JOBS}/{one['key']}") for one in (by_key, by_text, other)]
    assert [job["state"] for job in jobs] == ["pending", "pending", "failed"]


async def test_a_search_in_variables_stops_and_says_how_far_it_looked(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest = await rest.job(variables={"to": "ann@example.org"})
    await rest.ok("POST", JOBS, [{"type": "a"} for _ in range(300)])
    monkeypatch.setattr("everwork.service.service.SEARCH_STEPS_MAX", 1)
    monkeypatch.setattr("everwork.engines.portions.LIST_SCAN_MAX", 300)
    monkeypatch.setattr("everwork.engines.portions.NARROW_STEP", 100)
    page = await rest.ok("GET", JOBS, params={"variables": "ann@", "limit": 5})
    assert page["jobs"] == []
    while page["next"] is not None and not page["jobs"]:
        page = await rest.ok("GET", JOBS, params={"variables": "ann@", "limit": 5, "cursor": page["next"]})
    assert [job["key"] for job in page["jobs"]] == [oldest["key"]]


@pytest.mark.every_engine
async def test_pages_meet_every_job_once(rest: Rest) -> None:
    created = await rest.ok("POST", JOBS, [{"type": "a"} for _ in range(25)])
    met: list[str] = []
    query: dict[str, Any] = {"limit": 10}
    while True:
        page = await rest.ok("GET", JOBS, params=query)
        met += [job["key"] for job in page["jobs"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert met == [job["key"] for job in reversed(created)]


async def test_a_long_poll_gets_a_job_that_comes_while_it_waits(rest: Rest) -> None:
    asked = {"type": "email-send", "worker": "w1", "wait": 20}
    poll = asyncio.create_task(rest.ok("POST", f"{JOBS}/activate", asked))
    await until(lambda: rest.service.waiting("email-send") == 1)
    job = await rest.job()
    assert [one["key"] for one in (await poll)["jobs"]] == [job["key"]]


@pytest.mark.every_engine
async def test_figures_count_what_was_done(rest: Rest) -> None:
    job = await rest.leased()
    await rest.ok("PUT", f"{JOBS}/{job['key']}/complete", {"attempt": 1})
    await rest.dead_letter()
    stats = await rest.ok("GET", "/api/v1/stats", params={"hours": 1})
    assert (stats["total"], stats["by_state"]["completed"], stats["by_state"]["failed"]) == (2, 1, 1)
    assert (stats["by_type"]["email-send"]["failed"], stats["by_worker"]) == (1, {"w1": 2})
    assert stats["performance"]["success_rate"] == 50.0


async def test_a_job_that_does_not_exist_is_not_found(rest: Rest) -> None:
    calls: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("DELETE", "", None),
        ("PUT", "/complete", {}),
        ("PUT", "/fail", {"variables": {"a": 1}}),
        ("PUT", "/fail", {}),
        ("PUT", "/cancel", {}),
        ("PUT", "/retries", {"retries": 1}),
        ("PUT", "/timeout", {"timeout_ms": 1}),
        ("PUT", "/requeue", None),
        ("PUT", "/run-now", None),
        ("PUT", "/reschedule", {"delay_ms": 1}),
        ("PUT", "/priority", {"priority": 1}),
        ("POST", "/throw-error", {"error_code": "E"}),
    ]
    for method, suffix, body in calls:
        assert (await rest.refused(404, method, f"{JOBS}/{NEVER}{suffix}", body))["code"] == "job_not_found"
