"""Dead letters, policies and breakers over REST."""

from __future__ import annotations

from typing import Any

import pytest

from everwork.core.fingerprint import fingerprint
from tests.server.http.serving import JOBS, Rest

DEAD = "/api/v1/dead"
TYPE = "/api/v1/types/email-send"


async def test_dead_letters_are_listed_in_groups_requeued_and_purged(local: Rest) -> None:
    await local.dead_letter("timed out after 3 s")
    again = await local.dead_letter("timed out after 4 s")
    await local.dead_letter("refused")
    listed = await local.ok("GET", DEAD, params={"error": "timed"})
    [group] = listed["groups"]
    assert (group["jobs"], group["key"], group["error"]) == (2, again["key"], "timed out after 4 s")
    assert group["exception_class"] == "TimeoutError"
    assert (listed["looked_at"], listed["cut"], listed["left_out"]) == (2, False, 0)
    [other] = (await local.ok("GET", DEAD, params={"error": "refused"}))["groups"]
    assert other["exception_class"] is None
    kind = {"fingerprint": fingerprint("timed out after 5 s")}
    assert await local.ok("POST", f"{DEAD}/requeue", {**kind, "dry_run": True}) == _change(2, 0, dry_run=True)
    assert await local.ok("POST", f"{DEAD}/requeue", kind) == _change(2, 2)
    assert await local.ok("POST", f"{DEAD}/purge", {"all": True}) == _change(1, 1)
    assert (await local.ok("GET", "/api/v1/stats"))["by_state"]["failed"] == 0
    actions = [entry["action"] for entry in (await local.ok("GET", "/api/v1/audit"))["entries"]]
    assert actions == ["dead.purge", "dead.requeue"]


async def test_a_filter_that_matches_nothing_is_refused(local: Rest) -> None:
    refusal = await local.refused(404, "POST", f"{DEAD}/requeue", {"type": "email-send"})
    assert (refusal["code"], refusal["detail"]) == ("nothing_matches", "no dead letter matches")
    assert (await local.refused(422, "POST", f"{DEAD}/purge", {}))["field"] == "all"
    assert (await local.refused(422, "POST", f"{DEAD}/purge", {"all": True, "type": "a"}))["field"] == "all"
    assert (await local.refused(422, "GET", DEAD, params={"fingerprint": "17"}))["field"] == "fingerprint"


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
async def test_an_empty_text_is_refused_as_a_filter_and_means_no_job_at_all(local: Rest, blank: str) -> None:
    await local.dead_letter("refused")
    for path in (f"{DEAD}/requeue", f"{DEAD}/purge", f"{JOBS}/requeue"):
        assert (await local.refused(422, "POST", path, {"error": blank}))["field"] == "error"
        assert (await local.refused(422, "POST", path, {"type": "email-send", "tenant": []}))["field"] == "tenant"
    for path in (DEAD, JOBS):
        assert (await local.refused(422, "GET", path, params={"error": blank}))["field"] == "error"
    assert (await local.ok("GET", "/api/v1/stats"))["by_state"]["failed"] == 1


async def test_a_policy_is_set_as_a_whole_or_changed_in_parts(local: Rest) -> None:
    rules = [{"strategy": "permanent", "exception": "ValueError"}]
    put = {"max_running": 5, "rate_jobs": 100, "errors": rules, "strict": True}
    assert (await local.ok("PUT", f"{TYPE}/policy", put))["set"] == put
    patched = await local.ok("PATCH", f"{TYPE}/policy", {"max_running": None, "breaker_failures": 4})
    assert patched["set"] == {"rate_jobs": 100, "errors": rules, "strict": True, "breaker_failures": 4}
    assert (patched["policy"]["breaker_seconds"], patched["policy"]["rate_seconds"]) == (60.0, 60.0)
    assert (await local.ok("PUT", f"{TYPE}/policy", {"base": 1}))["set"] == {"base": 1}
    assert (await local.refused(422, "PATCH", f"{TYPE}/policy", {}))["field"] == "body"
    for method in ("PUT", "PATCH"):
        assert (await local.refused(422, method, f"{TYPE}/policy"))["detail"].startswith("body: is required")
    assert (await local.ok("GET", f"{TYPE}/policy"))["set"] == {"base": 1}
    assert (await local.ok("PUT", f"{TYPE}/policy", {}))["set"] == {}
    detail = (await local.refused(422, "PUT", f"{TYPE}/policy", {"base": True}))["detail"]
    assert detail.endswith(", not true")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"breaker_failures": 0}, "breaker_failures"),
        ({"breaker_seconds": 0}, "breaker_seconds"),
        ({"max_attempts": 101}, "max_attempts"),
        ({"base": -1}, "base"),
        ({"rate_seconds": 5}, "rate_jobs"),
        ({"errors": [{"strategy": "never", "text": "a"}]}, "errors.strategy"),
        ({"errors": [{"strategy": "permanent"}]}, "errors"),
        ({"errors": {"a": 1}}, "errors"),
        ({"max_runing": 1}, "max_runing"),
        ({"strict": 1}, "strict"),
    ],
    ids=str,
)
async def test_a_wrong_policy_is_refused_by_its_field(local: Rest, said: dict[str, Any], field: str) -> None:
    for method in ("PUT", "PATCH"):
        assert (await local.refused(422, method, f"{TYPE}/policy", said))["field"] == field
    assert (await local.ok("GET", "/api/v1/types"))["types"] == []


async def test_an_open_breaker_is_shown_told_to_who_asks_for_jobs_and_reset(rest: Rest) -> None:
    job = await rest.job()
    assert await rest.ok("PUT", f"{TYPE}/breaker/open", {"seconds": 600}) == {"type": "email-send", "seconds": 600}
    [shown] = (await rest.ok("GET", "/api/v1/types"))["types"]
    assert (shown["breaker"], shown["breaker_probe"]) == ("open", None)
    answered = await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w"})
    assert answered["jobs"] == []
    until = shown["breaker_open_until"]
    assert answered["reason"] == f"type 'email-send' is stopped by its circuit breaker until {until}"
    explanation = (await rest.ok("GET", f"{JOBS}/{job['key']}"))["explanation"]
    assert (explanation["reason"], explanation["until"]) == ("breaker", until)
    assert (await rest.ok("PUT", f"{TYPE}/breaker/reset"))["was_open"] is True
    assert len((await rest.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w"}))["jobs"]) == 1


async def test_a_failure_by_policy_is_classified_by_its_text(local: Rest) -> None:
    await local.ok("PUT", f"{TYPE}/policy", {"errors": [{"strategy": "permanent", "text": "No such card"}]})
    job = await local.leased()
    failed = await local.ok(
        "PUT", f"{JOBS}/{job['key']}/fail", {"error_message": "no such CARD: 17", "by_policy": True}
    )
    assert (failed["state"], failed["attempts"]) == ("failed", 1)
    other = await local.leased()
    retried = await local.ok("PUT", f"{JOBS}/{other['key']}/fail", {"error_message": "no such card: 18"})
    assert retried["state"] == "pending"


def _change(matched: int, changed: int, *, dry_run: bool = False) -> dict[str, Any]:
    return {"matched": matched, "changed": changed, "dry_run": dry_run}
