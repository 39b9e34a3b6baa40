"""Redis alone: a sorted set of ready jobs, one of leases, a hash of payloads; one script per call, one connection."""

from __future__ import annotations

import json

from redis.asyncio import Redis

from benchmarks.bench import BATCH, Bench, Timing, check_all

INSERT = """
for n = 1, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[n], ARGV[n + 1])
  redis.call('ZADD', KEYS[1], ARGV[n], ARGV[n])
end
"""
CLAIM = """
local ids = redis.call('ZRANGE', KEYS[1], 0, ARGV[1] - 1)
if #ids == 0 then return {{}, {}} end
redis.call('ZREM', KEYS[1], unpack(ids))
local leases = {}
for n, id in ipairs(ids) do leases[2 * n - 1], leases[2 * n] = ARGV[2], id end
redis.call('ZADD', KEYS[3], unpack(leases))
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}
"""
FINISH = """
redis.call('ZREM', KEYS[2], unpack(ARGV))
return redis.call('HDEL', KEYS[1], unpack(ARGV))
"""
READY, PAYLOAD, LEASED = "bare-ready", "bare-payload", "bare-leased"


async def drain(bench: Bench, jobs: int) -> Timing:
    """Claim 100 with one script, delete the 100 with the next, until nothing is left."""
    with bench.store() as url:
        async with Redis.from_url(_server(url)) as redis:
            claim, finish = redis.register_script(CLAIM), redis.register_script(FINISH)
            await _insert(redis, jobs, 1000)
            done = 0
            with bench.timing(jobs) as timing:
                while (got := await claim([READY, PAYLOAD, LEASED], [BATCH, 30_000]))[0]:
                    for payload in got[1]:
                        json.loads(payload)
                    await finish([PAYLOAD, LEASED], got[0])
                    done += len(got[0])
    check_all(done, jobs)
    return timing


async def insert(bench: Bench, jobs: int, batch: int) -> Timing:
    """Insert with scripts of one size."""
    with bench.store() as url:
        async with Redis.from_url(_server(url)) as redis:
            await redis.ping()
            with bench.timing(jobs) as timing:
                await _insert(redis, jobs, batch)
    return timing


async def _insert(redis: Redis, jobs: int, batch: int) -> None:
    script = redis.register_script(INSERT)
    for low in range(0, jobs, batch):
        rows = [part for n in range(low, min(low + batch, jobs)) for part in (n, json.dumps({"n": n}))]
        await script([READY, PAYLOAD], rows)


def _server(url: str) -> str:
    """The URL without Everwork's own parameters."""
    return url.partition("?")[0]
