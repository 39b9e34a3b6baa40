"""A store that an earlier Everwork has left works on, with all that has come since."""

from __future__ import annotations

from everwork.core.outcome import Failed
from everwork.core.states import State
from everwork.engines.redis.scripts import SCHEMA_VERSION
from tests.factories import TYPE, a_dead_letter, a_new_job, a_pending_job, a_policy, leased_keys, settled, the_job
from tests.redis.conftest import opened
from tests.redis.test_memory import swept
from tests.servers import RedisServer
from tests.stores import DAY_MS, HOUR_MS, SECOND_MS, VirtualClock

OLD_POLICY = '{"retry":{"max_attempts":2,"base":1.0,"factor":2.0,"cap":300.0,"jitter":0.0}}'


def become_old(server: RedisServer, policy: str) -> None:
    """Let the store look as version 1 has left it: policies are texts, with the one number that new jobs take."""
    server.ask("HSET", f"{{everwork}}:t:{TYPE}", "policy", policy, "max", "2")
    server.ask("HDEL", f"{{everwork}}:t:{TYPE}", "rules")
    server.ask("SET", "{everwork}:version", "1")


async def test_jobs_and_policies_of_version_1_are_worked_off_as_before(
    server: RedisServer, clock: VirtualClock
) -> None:
    async with opened(server.url, clock) as engine:
        job = await a_pending_job(engine, max_attempts=2)
    become_old(server, OLD_POLICY)
    async with opened(server.url, clock) as engine:
        assert await leased_keys(engine) == [job.key]
        failed = await settled(engine, Failed(job.key, 1, "boom"))
        assert (failed.state, failed.run_at_ms) == (State.PENDING, clock.now_ms + SECOND_MS)
        assert (await a_pending_job(engine)).max_attempts == 2
        assert (await engine.schema()).stored == (await engine.health()).schema_version == SCHEMA_VERSION


async def test_a_policy_whose_numbers_stand_in_its_text_only_takes_effect(
    server: RedisServer, clock: VirtualClock
) -> None:
    async with opened(server.url, clock) as engine:
        await engine.create([a_new_job() for _ in range(3)])
        await leased_keys(engine, 1)
    become_old(server, '{"max_running":2}')
    async with opened(server.url, clock) as engine:
        assert len(await leased_keys(engine, 9)) == 1


async def test_what_had_finished_in_version_1_comes_back_and_goes_as_new_rules_say(
    server: RedisServer, clock: VirtualClock
) -> None:
    async with opened(server.url, clock) as engine:
        dead = await a_dead_letter(engine)
        other = await a_dead_letter(engine, type="other")
    become_old(server, OLD_POLICY)
    async with opened(server.url, clock) as engine:
        await a_policy(engine, failed_job_retry_hours=24.0)
        await a_policy(engine, type="other", keep_failed_hours=1.0)
        clock.advance(ms=DAY_MS + HOUR_MS)
        await swept(engine)
        assert (await the_job(engine, dead.key)).state is State.PENDING
        assert await engine.get([other.key]) == [None]
