"""get, history, list, count, stats, measures, oldest, explain: questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from everwork.core.breaker import Breaker
from everwork.core.job import HistoryEntry, Job
from everwork.core.limits import HISTORY_ENTRIES_MAX, HOUR_MS, INSTANT_MS_MAX, KEY_MAX, OLDEST_LOOK_MAX
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats, WorkerHour
from everwork.core.retry import remaining_retries
from everwork.core.states import Cause, State
from everwork.engines.portions import (
    PageBuilder,
    filters_by_attempt,
    filters_by_job,
    first_step,
    next_step,
    parted,
    portions,
)
from everwork.engines.postgres.opened import OpenStore
from everwork.engines.rules import AHEAD_MAX, Facts, attempts_min, error_matches, explained, states_to_search

LOOK_STEP = 1_000
"""Errors are looked at in full, and may be long."""
COUNTED = (State.PENDING, State.PROCESSING, State.COMPLETED, State.FAILED, State.CANCELLED)


async def get(parts: OpenStore, keys: Sequence[int]) -> list[Job | None]:
    """Jobs by key, in the order asked for."""
    rows = await parts.connections.look(parts.sql("get")["job"], sorted(set(keys)))
    found = {row[0]: job_of(row) for row in rows}
    return [found.get(key) for key in keys]


async def owners(parts: OpenStore, keys: Sequence[int]) -> list[str | None]:
    """The tenants of jobs, in the order asked for."""
    found = dict(map(tuple, await parts.connections.look(parts.sql("owners")["owners"], sorted(set(keys)))))
    return [found.get(key) for key in keys]


async def histories(parts: OpenStore, keys: Iterable[int]) -> dict[int, list[HistoryEntry]]:
    """The written history of each job, and the end that stands with the finished one."""
    wanted = sorted(set(keys))
    events: defaultdict[int, list[HistoryEntry]] = defaultdict(list)
    for name in ("history", "end"):
        for key, *entry in await parts.connections.look(parts.sql("get")[name], wanted):
            events[key].append(HistoryEntry(*entry))
    return {key: entries[-HISTORY_ENTRIES_MAX:] for key, entries in events.items()}


async def find(parts: OpenStore, wanted: JobFilter, limit: int, cursor_key: int | None) -> Page:
    """Walk candidate keys newest first, a bounded number of them, and keep the jobs that match."""
    below = KEY_MAX if cursor_key is None else cursor_key
    now_ms = await server_now_ms(parts) if wanted.due else INSTANT_MS_MAX
    filling = PageBuilder(wanted, limit)
    seen = 0
    step = first_step(wanted, limit)
    while step:
        keys = await _candidates(parts, wanted, (below, step), now_ms)
        for some in parted(keys, LOOK_STEP):
            left = await _looked_at(parts, some, wanted)
            while left:
                if filling.is_full:
                    return filling.page()
                few, left = left[: filling.step], left[filling.step :]
                filling.add(await get(parts, few), now_ms)
        if len(keys) < step:
            return Page(filling.jobs, None)
        below = keys[-1]
        seen += len(keys)
        step = next_step(wanted, seen, step)
    return Page(filling.jobs, below)


async def _looked_at(parts: OpenStore, keys: Sequence[int], wanted: JobFilter) -> Sequence[int]:
    """Those of the keys whose jobs may match, found out without reading what they carry."""
    sql = parts.sql("find")
    if filters_by_job(wanted):
        span = (wanted.created_after_ms or 0, INSTANT_MS_MAX if (end := wanted.created_before_ms) is None else end)
        asked = (keys, list(wanted.tenants) or None, wanted.correlation_id, *span)
        keys = [key for (key,) in await parts.connections.look(sql["of_job"], *asked)]
    if filters_by_attempt(wanted):
        keys = [
            key
            for key, worker, error in await parts.connections.look(sql["of_attempt"], keys)
            if wanted.worker in (None, worker) and error_matches(error, wanted.error_text)
        ]
    return sorted(keys, reverse=True)  # The next page begins behind the last one; a plan may give them in any order.


async def count(parts: OpenStore) -> list[Count]:
    """The maintained counts."""
    rows = await parts.connections.look(parts.sql("count")["count"])
    return [
        Count(tenant, type, group, state, jobs)
        for tenant, type, group, *numbers in rows
        for state, jobs in zip(COUNTED, numbers, strict=True)
        if jobs
    ]


async def stats(parts: OpenStore, hours: int) -> Stats:
    """Counts, and the hourly rows of the hours asked for."""
    now_ms = await server_now_ms(parts)
    rows = await parts.connections.look(parts.sql("stats")["hours"], now_ms // HOUR_MS - hours)
    return Stats(await count(parts), [WorkerHour(*row) for row in rows], now_ms)


async def measures(parts: OpenStore, hours: int, type: str | None) -> list[Measure]:
    """How attempts went in the hours asked for."""
    sql, found = parts.sql("measures"), []
    queues = None if type is None else [queue for (queue,) in await parts.connections.look(sql["queues"], type)]
    for some in portions(hours, await server_now_ms(parts)):
        found += [Measure(*row) for row in await parts.connections.look(sql["measures"], *some, queues)]
    return found


async def oldest(parts: OpenStore) -> list[Oldest]:
    """Since when work waits."""
    rows = await parts.connections.look(parts.sql("oldest")["oldest"], parts.now_ms(), OLDEST_LOOK_MAX)
    return [Oldest(*row) for row in rows]


async def explain(parts: OpenStore, key: int) -> Explanation | None:
    """Read what a claim would look at; what it means is said in one place for every engine."""
    rows = await parts.connections.look(parts.sql("explain")["explain"], key, AHEAD_MAX, parts.now_ms())
    if not rows:
        return None
    state, type, group, run_at_ms, is_paused, failures, open_until_ms, probe_key, *facts = rows[0]
    breaker = Breaker(failures, open_until_ms, probe_key)
    found = Facts(key, State(state), type, group, run_at_ms, is_paused, breaker, *facts)
    return explained(found, await server_now_ms(parts))


async def server_now_ms(parts: OpenStore) -> int:
    """The engine's now."""
    now_ms = parts.now_ms()
    if now_ms is None:
        [[now_ms]] = await parts.connections.look(f"SELECT {parts.address.schema}.now_ms(NULL)")
    return now_ms


async def _candidates(parts: OpenStore, wanted: JobFilter, window: tuple[int, int], due_ms: int) -> list[int]:
    """The next keys below the cursor that may match: from the whole, or from the places that matter."""
    sql = parts.sql("find")
    states = states_to_search(wanted)
    if wanted.type is None and wanted.group is None and not states:
        return [key for (key,) in await parts.connections.look(sql["all"], *window)]
    queues = [
        queue
        for queue, type, group in await parts.connections.look(sql["queues"])
        if wanted.type in (None, type) and wanted.group in (None, group)
    ]
    parameters = (queues, *window, sorted(states or set(State)), due_ms, attempts_min(wanted))
    return [key for (key,) in await parts.connections.look(sql["some"], *parameters)]


def job_of(row: Any) -> Job:
    """A job from a row of get.sql."""
    (
        key, type, group, tenant, limit_key, state_number, variables, headers, result, priority, attempt, attempts,
        max_attempts, created_at_ms, run_at_ms, activated_at_ms, lease_until_ms, finished_at_ms, expires_at_ms,
        timeout_ms, worker, last_error, error_code, kind, dedupe_key, correlation_id, copy_of, extra, *_,
    ) = row  # fmt: skip
    state = State(state_number)
    return Job(
        key=key, type=type, group=group, tenant=tenant, limit_key=limit_key, state=state,
        variables=variables, headers=headers, result=result, priority=priority, attempt=attempt, attempts=attempts,
        max_attempts=max_attempts, retries=remaining_retries(state, attempts, max_attempts),
        created_at_ms=created_at_ms, run_at_ms=run_at_ms, activated_at_ms=activated_at_ms,
        lease_until_ms=lease_until_ms, finished_at_ms=finished_at_ms, expires_at_ms=expires_at_ms,
        timeout_ms=timeout_ms, worker=worker, last_error=last_error, error_code=error_code,
        rejected=kind == Cause.REJECT.value, dedupe_key=dedupe_key, correlation_id=correlation_id, copy_of=copy_of,
        extra=extra,
    )  # fmt: skip
