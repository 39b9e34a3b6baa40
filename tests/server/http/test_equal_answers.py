"""For a key bound to tenants, every operation treats a job of another tenant like one that does not exist."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx

from tests.server.http.matrix import CALLS, dead, running, waiting
from tests.server.http.serving import JOBS, Rest
from tests.server.http.test_matrix import operations
from tests.server.matrix import OTHER_TENANT, TENANT

MISSING = "99999999"
BODIES: Final[tuple[dict[str, Any] | None, ...]] = (None, {}, {"attempt": 1}, {"unknown": True})


def told(answer: httpx.Response, key: str) -> tuple[int, str, dict[str, str]]:
    """What a caller can see of a response, without what depends on the job."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
    return answer.status_code, re.sub(rf"\b{key}\b", "KEY", answer.text), headers


async def test_every_operation_answers_for_a_foreign_job_as_for_a_missing_one(local: Rest) -> None:
    header = await local.key("jobs", tenants=(OTHER_TENANT,))
    foreign = [await prepare(local) for prepare in (waiting, running, dead)]
    asked = 0
    for operation in operations(local):
        if "{key}" not in operation.path:
            continue
        for body in (CALLS[operation.id].body, *BODIES):
            answers = [
                told(await local(operation.method, operation.path.format(key=key), body, headers=header), key)
                for key in (MISSING, *foreign)
            ]
            assert answers == [answers[0]] * len(answers), (operation.id, body)
            assert answers[0][0] in (404, 422), (operation.id, body)
            asked += answers[0][0] == 404
    assert asked >= 15
    states = [(await local.ok("GET", f"{JOBS}/{key}"))["state"] for key in foreign]
    assert states == ["pending", "processing", "failed"]


async def test_a_bound_key_is_told_nothing_of_another_tenants_probe(local: Rest) -> None:
    await local.ok("PUT", "/api/v1/types/email-send/policy", {"breaker_failures": 1, "breaker_seconds": 60})
    mine, theirs = await local.job(tenant=OTHER_TENANT), await local.job(tenant=TENANT, priority=9)
    await half_open(local, theirs["key"])
    header = await local.key("jobs", tenants=(OTHER_TENANT,))
    seen: Any = await local.ok("GET", f"{JOBS}/{mine['key']}", headers=header)
    polled = await local.ok("POST", f"{JOBS}/activate", {"type": "email-send", "worker": "w"}, headers=header)
    for text in (seen["explanation"]["text"], polled["reason"]):
        assert ("probe" in text, theirs["key"] in text) == (True, False), text
    assert theirs["key"] in (await local.ok("GET", f"{JOBS}/{mine['key']}"))["explanation"]["text"]


async def half_open(rest: Rest, probe: str) -> None:
    """Make a job the probe of its type's breaker."""
    await rest.engine.open_breaker("email-send", 1)
    asked = {"type": "email-send", "worker": "w1", "max_jobs": 1, "tenants": [TENANT], "wait": 5}
    [leased] = (await rest.ok("POST", f"{JOBS}/activate", asked))["jobs"]
    assert leased["key"] == probe
