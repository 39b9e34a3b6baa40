"""POST /api/v1/tick: upkeep and due triggers on request."""

from __future__ import annotations

import pytest

from everwork.service.fleet.fleet import Fleet
from tests.app.waiting import until
from tests.fleets import a_trigger
from tests.server.http.serving import JOBS, Rest

TICK = "/api/v1/tick"
NOTHING = {"lapsed": 0, "expired": 0, "requeued": 0, "deleted": 0, "fired": 0}


async def test_a_tick_ends_expired_leases_also_where_the_upkeep_loop_is_frozen(rest: Rest) -> None:
    await rest.service._upkeep.abort()
    job = await rest.job()
    await rest.ok("POST", f"{JOBS}/activate", {"type": job["type"], "worker": "w1", "max_jobs": 1, "timeout_ms": 1})
    done: list[dict[str, int]] = []

    async def has_lapsed() -> bool:
        done.append(await rest.ok("POST", TICK))
        return done[-1]["lapsed"] == 1

    await until(has_lapsed)
    assert done[-1] == NOTHING | {"lapsed": 1}
    assert (await rest.ok("GET", f"{JOBS}/{job['key']}"))["last_error"].startswith("lease expired")
    assert await rest.ok("POST", TICK, {}) == NOTHING


async def test_a_tick_fires_registered_triggers_whose_program_does_not_run(rest: Rest) -> None:
    trigger = await a_trigger(rest.engine, interval_ms=1, is_catchup=True)
    await rest.ok("POST", TICK)  # It begins now.
    fired = await rest.ok("POST", TICK)
    assert fired["fired"] > 0
    jobs = (await rest.ok("GET", JOBS, params={"type": trigger.type, "limit": 1_000}))["jobs"]
    assert len(jobs) >= fired["fired"]
    assert jobs[0]["variables"] == {"pages": 3}


async def test_a_tick_fires_neither_what_is_switched_off_nor_what_only_a_program_can_compute(local: Rest) -> None:
    trigger = await a_trigger(local.engine, interval_ms=1, is_catchup=True)
    await Fleet(local.engine).switch_trigger(trigger.name, False)
    assert [await local.ok("POST", TICK) for _ in range(2)] == [NOTHING] * 2
    await a_trigger(local.engine, id="own", title="own", interval_ms=1, is_catchup=True, is_foreign=True)
    assert [await local.ok("POST", TICK) for _ in range(2)] == [NOTHING] * 2
    await a_trigger(local.engine, id="lost", title="lost", cron="* * * * *", interval_ms=None, timezone="Mars/Olympus")
    assert await local.ok("POST", TICK) == NOTHING


@pytest.mark.parametrize("permission", ["tick", "admin", "*"])
async def test_a_key_for_ticks_ticks_and_may_do_nothing_else(local: Rest, permission: str) -> None:
    key = await local.key(permission)
    assert await local.ok("POST", TICK, headers=key) == NOTHING
    if permission == "tick":
        for method, path in (("GET", JOBS), ("POST", JOBS), ("GET", "/api/v1/types"), ("GET", "/api/v1/keys")):
            body = {"type": "t"} if method == "POST" else None
            assert (await local.refused(403, method, path, body, headers=key))["code"] == "permission_denied"


async def test_keys_without_the_permission_or_bound_to_tenants_are_refused(local: Rest) -> None:
    for key in (await local.key("jobs"), await local.key("jobs:read"), await local.key("tick", tenants=("acme",))):
        await local.refused(403, "POST", TICK, headers=key)
    await local.refused(405, "GET", TICK)
