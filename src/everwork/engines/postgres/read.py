"""Queries on jobs: get, history, find, counts and statistics, explain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from everwork.core.breaker import Breaker
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.limits import HISTORY_ENTRIES_MAX, HOUR_MS, INSTANT_MS_MAX, OLDEST_SCAN_MAX
from everwork.core.queries import (
    Count,
    Explanation,
    JobFilter,
    Measure,
    Oldest,
    Order,
    Page,
    Stats,
    WorkerHour,
    cursor_at,
    cursor_parts,
)
from everwork.core.states import State
from everwork.engines.contract.questions import Questions
from everwork.engines.portions import (
    PageBuilder,
    VariablesSearch,
    batches,
    dedupe_owners,
    first_cursor,
    first_step,
    hour_ranges,
    is_by_dedupe_key,
    merged_hours,
    newest_below,
    next_step,
)
from everwork.engines.postgres.opened import OpenStore, PostgresBase
from everwork.engines.rules import (
    AHEAD_MAX,
    Facts,
    attempts_min,
    error_matches,
    explained,
    filters_by_attempt,
    filters_by_job,
    job_conditions,
    job_from,
    readable,
    states_to_search,
)

FILTER_STEP = 1_000
"""How many candidates are filtered per statement: their errors are read in full, and may be long."""
_AFTER_TENANT = -3
"""The columns that get.sql reads after those of `job_from` and the tenant."""
COUNTED = (State.PENDING, State.PROCESSING, State.COMPLETED, State.FAILED, State.CANCELLED)


class PostgresQuestions(PostgresBase, Questions):
    """Read-only queries on jobs."""

    async def get(self, keys: Sequence[int]) -> list[StoredJob | None]:
        store = self._store
        rows = await store.connections.read(store.sql("get")["job"], sorted(set(keys)))
        jobs = {job.key: job for job in readable(job_of, rows)}
        return [jobs.get(key) for key in keys]

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        store = self._store
        rows = await store.connections.read(store.sql("owners")["owners"], sorted(set(keys)))
        tenants: dict[int, str] = {key: tenant for key, tenant in rows}  # noqa: C416 - records are no tuples
        return [tenants.get(key) for key in keys]

    async def history(self, key: int) -> list[HistoryEntry]:
        return (await histories(self._store, [key])).get(key, [])

    async def count(self) -> list[Count]:
        store = self._store
        rows = await store.connections.read(store.sql("count")["count"])
        return [
            Count(tenant, type, group, state, jobs)
            for tenant, type, group, *numbers in rows
            for state, jobs in zip(COUNTED, numbers, strict=True)
            if jobs
        ]

    async def stats(self, hours: int) -> Stats:
        store = self._store
        now_ms = await server_now_ms(store)
        rows = await store.connections.read(store.sql("stats")["hours"], now_ms // HOUR_MS - hours)
        return Stats(await self.count(), [WorkerHour(*row) for row in rows], now_ms)

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        store = self._store
        sql, found, queues = store.sql("measures"), list[Measure](), await self._queues_of(type)
        for portion in hour_ranges(hours, await server_now_ms(store)):
            found += [Measure(*row) for row in await store.connections.read(sql["measures"], *portion, queues)]
        return found

    async def hour_totals(self, hours: int, type: str | None = None) -> list[Measure]:
        store = self._store
        sql, found, queues = store.sql("hour_totals"), list[Measure](), await self._queues_of(type)
        for portion in hour_ranges(hours, await server_now_ms(store)):
            measured = await store.connections.read(sql["measures"], *portion, queues)
            found += merged_hours(measured, await store.connections.read(sql["work"], *portion, queues))
        return found

    async def _queues_of(self, type: str | None) -> list[int] | None:
        if type is None:
            return None
        return [queue for (queue,) in await self._store.connections.read(self._store.sql("measures")["queues"], type)]

    async def oldest(self) -> list[Oldest]:
        store = self._store
        rows = await store.connections.read(store.sql("oldest")["oldest"], store.now_ms(), OLDEST_SCAN_MAX)
        return [Oldest(*row) for row in rows]

    async def explain(self, key: int) -> Explanation | None:
        store = self._store
        rows = await store.connections.read(store.sql("explain")["explain"], key, AHEAD_MAX, store.now_ms())
        if not rows:
            return None
        state, type, group, run_at_ms, is_paused, failures, open_until_ms, probe_key, *rest = rows[0]
        breaker = Breaker(failures, open_until_ms, probe_key)
        facts = Facts(key, State(state), type, group, run_at_ms, is_paused, breaker, *rest)
        return explained(facts, await server_now_ms(store))

    async def find(self, query: JobFilter, limit: int, cursor: int | None = None) -> Page:
        """Scan a bounded number of candidates, in order, and keep the jobs that match."""
        store = self._store
        last = first_cursor(query) if cursor is None else cursor
        now_ms = await server_now_ms(store) if query.due else INSTANT_MS_MAX
        page, search = PageBuilder(query, limit), VariablesSearch(query)
        seen = 0
        step = first_step(query, limit)
        while step:
            window = (last, step)
            if is_by_dedupe_key(query):
                places = newest_below(await self._holders(query), window)
            else:
                places = await _candidates(store, query, window, now_ms)
            for part in batches(page.keys(places), FILTER_STEP):
                left = await _filtered(store, part, query)
                while left:
                    searched = search.portion(left)
                    found = await _containing(store, searched, query, search)
                    while found:
                        if page.is_full:
                            return page.page()
                        batch, found = found[: page.step], found[page.step :]
                        page.add(await self.get(batch), now_ms)
                    if search.is_over:
                        return page.page_up_to(searched[-1])
                    left = left[len(searched) :]
            if len(places) < step:
                return Page(page.jobs, None)
            last = places[-1]
            seen += len(places)
            step = next_step(query, seen, step)
        return Page(page.jobs, last)

    async def _holders(self, query: JobFilter) -> list[int]:
        """The keys of the jobs that hold the dedupe key of a query."""
        owners = dedupe_owners(query, await self.count())
        types, tenants = [type for type, _ in owners], [tenant for _, tenant in owners]
        sql = self._store.sql("find")["deduped"]
        return [key for (key,) in await self._store.connections.read(sql, types, tenants, query.dedupe_key)]


async def histories(store: OpenStore, keys: Iterable[int]) -> dict[int, list[HistoryEntry]]:
    """The history of each job: its entries, and how its last attempt ended, which the finished job itself holds."""
    ordered = sorted(set(keys))
    entries: defaultdict[int, list[HistoryEntry]] = defaultdict(list)
    for name in ("history", "end"):
        for key, *entry in await store.connections.read(store.sql("get")[name], ordered):
            entries[key].append(HistoryEntry(*entry))
    return {key: of_job[-HISTORY_ENTRIES_MAX:] for key, of_job in entries.items()}


class JobStatus(NamedTuple):
    """The state of a job and how its latest attempt ended: a row of the statement `where` of get.sql."""

    key: int
    state: int
    attempt: int
    attempts: int
    max_attempts: int
    kind: str | None
    is_unreported: bool
    """Whether the job was completed in a user's own transaction and the breaker has not counted it yet."""


async def job_statuses(store: OpenStore, keys: Sequence[int]) -> list[JobStatus]:
    """The statuses of the jobs that exist."""
    return [JobStatus(*row) for row in await store.connections.read(store.sql("get")["where"], keys)]


async def server_now_ms(store: OpenStore) -> int:
    """The engine's current time."""
    now_ms = store.now_ms()
    if now_ms is None:
        [[now_ms]] = await store.connections.read(f"SELECT {store.url.schema}.now_ms(NULL)")
    return now_ms


async def _candidates(store: OpenStore, query: JobFilter, window: tuple[int, int], due_ms: int) -> list[int]:
    """The next positions after the cursor whose jobs may match: among all jobs, or in relevant queues and states."""
    last, step = window
    sql = store.sql("find")
    if query.correlation_id is not None and query.order is Order.NEWEST:
        return [key for (key,) in await store.connections.read(sql["correlated"], query.correlation_id, *window)]
    states = states_to_search(query)
    if query.type is None and query.group is None and not states:
        return [key for (key,) in await store.connections.read(sql["all"], *window)]
    queues = [
        queue
        for queue, type, group in await store.connections.read(sql["queues"])
        if query.type in (None, type) and query.group in (None, group)
    ]
    if query.order is Order.FAILED:
        found = await store.connections.read(sql["latest"], queues, *cursor_parts(last), step)
        return [cursor_at(*row) for row in found]
    if query.order is Order.DUE:
        place = cursor_parts(last)
        found = await store.connections.read(sql["due"], queues, *place, step, due_ms, attempts_min(query))
        return [cursor_at(*row) for row in found]
    parameters = (queues, *window, sorted(states or set(State)), due_ms, attempts_min(query))
    return [key for (key,) in await store.connections.read(sql["some"], *parameters)]


async def _filtered(store: OpenStore, candidates: Sequence[int], query: JobFilter) -> Sequence[int]:
    """The keys whose jobs may match, without reading their payloads."""
    sql, keys = store.sql("find"), candidates
    if filters_by_job(query):
        parameters = (keys, list(query.tenants) or None, *job_conditions(query))
        keys = [key for (key,) in await store.connections.read(sql["of_job"], *parameters)]
    if filters_by_attempt(query):
        keys = [
            key
            for key, worker, error in await store.connections.read(sql["of_attempt"], keys)
            if query.worker in (None, worker) and error_matches(error, query.error_text)
        ]
    left = set(keys)
    return [key for key in candidates if key in left]  # Restores their order, which a query plan does not guarantee.


async def _containing(
    store: OpenStore, keys: Sequence[int], query: JobFilter, search: VariablesSearch
) -> Sequence[int]:
    """The keys whose variables contain the query's text; all keys if the query has none."""
    if query.variables_text is None:
        return keys
    sql = store.sql("find")["of_variables"]
    return search.matching(await store.connections.read(sql, list(keys), query.variables_text))


def job_of(row: Any) -> StoredJob:
    """A job from a row of get.sql."""
    return job_from(row[:_AFTER_TENANT], row["tenant"], row["limit_key"])
