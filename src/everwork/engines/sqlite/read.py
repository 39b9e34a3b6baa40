"""get, owners, history, find, count, stats, measures, oldest, explain: queries on the reader's connection."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final

from everwork.core.breaker import Breaker
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.limits import DEFAULT_TENANT, HISTORY_ENTRIES_MAX, HOUR_MS, INSTANT_MS_MAX, OLDEST_SCAN_MAX
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
    Hours,
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
from everwork.engines.sqlite.capacity import is_probe_live
from everwork.engines.sqlite.shared import FoundJob
from everwork.engines.sqlite.statements import limit_key_of, statements, tenant_of
from everwork.engines.sqlite.store.opened import SqliteBase

GET = statements("get")
FIND = statements("find")
EXPLAIN = statements("explain")
JOBS = GET["job"].replace("{keys}", "json_each(?)")
FEW_KEYS = 20
"""Reading more jobs than this counts as a scan."""
LANE = -1
"""The last column of a job."""
FILTER_STEP = 1_000
"""How many candidates are filtered per statement: their errors are read in full, and may be long."""


class SqliteQuestions(SqliteBase, Questions):
    """Queries on jobs."""

    async def get(self, keys: Sequence[int]) -> list[StoredJob | None]:
        read = self._store.query if len(keys) <= FEW_KEYS else self._store.scan
        return await read(lambda cursor, _: get(cursor, keys))

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        return await self._store.query(lambda cursor, _: owners(cursor, keys))

    async def history(self, key: int) -> list[HistoryEntry]:
        return await self._store.query(lambda cursor, _: history(cursor, key))

    async def count(self) -> list[Count]:
        return await self._store.scan(lambda cursor, _: count(cursor))

    async def stats(self, hours: int) -> Stats:
        return await self._store.scan(lambda cursor, now_ms: stats(cursor, hours, now_ms))

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        found: list[Measure] = []
        for portion in hour_ranges(hours, self._clock()):
            found += await self._store.scan(partial(measures, portion, type))
        return found

    async def hour_totals(self, hours: int, type: str | None = None) -> list[Measure]:
        found: list[Measure] = []
        for portion in hour_ranges(hours, self._clock()):
            found += await self._store.scan(partial(hour_totals, portion, type))
        return found

    async def oldest(self) -> list[Oldest]:
        return await self._store.scan(oldest)

    async def explain(self, key: int) -> Explanation | None:
        return await self._store.query(lambda cursor, now_ms: explain(cursor, key, now_ms))

    async def find(self, query: JobFilter, limit: int, cursor: int | None = None) -> Page:
        return await self._store.scan(lambda reader, now_ms: find(reader, query, (limit, cursor), now_ms))


def get(cursor: sqlite3.Cursor, keys: Sequence[int]) -> list[StoredJob | None]:
    """Jobs by key, in the order of the keys."""
    rows = cursor.execute(JOBS, (json.dumps(list(keys)),)).fetchall()
    jobs = readable(lambda row: job_from(row, tenant_of(lane := row[LANE]), limit_key_of(lane)), rows)
    found = {job.key: job for job in jobs}
    return [found.get(key) for key in keys]


def owners(cursor: sqlite3.Cursor, keys: Sequence[int]) -> list[str | None]:
    """The tenants of jobs, in the order of the keys."""
    rows = cursor.execute(statements("owners")["owners"], (json.dumps(list(keys)),)).fetchall()
    found = {key: tenant_of(lane) for key, lane in rows}
    return [found.get(key) for key in keys]


def history(cursor: sqlite3.Cursor, key: int) -> list[HistoryEntry]:
    """The stored history, including the ending that is stored with the finished job."""
    events = [HistoryEntry._make(row) for row in cursor.execute(GET["history"], (key,)).fetchall()]
    end = cursor.execute(GET["end"], (key,)).fetchone()
    if end:
        events.append(HistoryEntry(*end))
    return events[-HISTORY_ENTRIES_MAX:]


def find(cursor: sqlite3.Cursor, query: JobFilter, page: tuple[int, int | None], now_ms: int) -> Page:
    """Scan a bounded number of candidates, in order, and keep the jobs that match."""
    limit, after = page
    last = first_cursor(query) if after is None else after
    builder, search = PageBuilder(query, limit), VariablesSearch(query)
    seen = 0
    step = first_step(query, limit)
    while step:
        places = _candidates(cursor, query, (last, step), now_ms)
        for part in batches(builder.keys(places), FILTER_STEP):
            left = _prefiltered(cursor, part, query)
            while left:
                searched = search.portion(left)
                found = _containing(cursor, searched, query, search)
                while found:
                    if builder.is_full:
                        return builder.page()
                    few, found = found[: builder.step], found[builder.step :]
                    builder.add(get(cursor, few), now_ms)
                if search.is_over:
                    return builder.page_up_to(searched[-1])
                left = left[len(searched) :]
        if len(places) < step:
            return Page(builder.jobs, None)
        last = places[-1]
        seen += len(places)
        step = next_step(query, seen, step)  # Every step scans all pending jobs.
    return Page(builder.jobs, last)


def _prefiltered(cursor: sqlite3.Cursor, keys: Sequence[int], query: JobFilter) -> Sequence[int]:
    """The keys whose jobs may match, without reading their payloads."""
    if filters_by_job(query):
        tenants = json.dumps(query.tenants) if query.tenants else None
        parameters = (json.dumps(list(keys)), tenants, *job_conditions(query), DEFAULT_TENANT)
        keys = [key for (key,) in cursor.execute(FIND["of_job"], parameters).fetchall()]
    if filters_by_attempt(query):
        rows = cursor.execute(FIND["of_attempt"], (json.dumps(list(keys)),)).fetchall()
        keys = [
            key
            for key, worker, error in rows
            if query.worker in (None, worker) and error_matches(error, query.error_text)
        ]
    return keys


def _containing(
    cursor: sqlite3.Cursor, keys: Sequence[int], query: JobFilter, search: VariablesSearch
) -> Sequence[int]:
    """The keys whose variables contain the query's text; all keys if the query has none."""
    if query.variables_text is None:
        return keys
    return search.matching(cursor.execute(FIND["of_variables"], (json.dumps(list(keys)), query.variables_text)))


def count(cursor: sqlite3.Cursor) -> list[Count]:
    """The maintained counts."""
    rows = cursor.execute(statements("count")["count"]).fetchall()
    return [Count(tenant, type, group, State(state), jobs) for tenant, type, group, state, jobs in rows]


def stats(cursor: sqlite3.Cursor, hours: int, now_ms: int) -> Stats:
    """Counts, and the hourly rows of the last `hours` hours."""
    rows = cursor.execute(statements("stats")["hours"], (now_ms // HOUR_MS - hours,)).fetchall()
    return Stats(count(cursor), [WorkerHour._make(row) for row in rows], now_ms)


def measures(hours: Hours, type: str | None, cursor: sqlite3.Cursor, _now_ms: int) -> list[Measure]:
    """The measures of some hours."""
    sql = statements("measures")
    found = cursor.execute(sql["of_all"], hours) if type is None else cursor.execute(sql["of_type"], (*hours, type))
    return [Measure._make(row) for row in found.fetchall()]


def hour_totals(hours: Hours, type: str | None, cursor: sqlite3.Cursor, _now_ms: int) -> list[Measure]:
    """The statistics of some hours, summed over workers, and over types if none is given."""
    sql = statements("hour_totals")
    if type is None:
        measured = cursor.execute(sql["measures"], hours).fetchall()
        return merged_hours(measured, cursor.execute(sql["work"], hours).fetchall())
    measured = cursor.execute(sql["measures_of_type"], (*hours, type)).fetchall()
    return merged_hours(measured, cursor.execute(sql["work_of_type"], (*hours, type)).fetchall())


def explain(cursor: sqlite3.Cursor, key: int, now_ms: int) -> Explanation | None:
    """Read what a claim checks; the rules shared by all engines create the explanation."""
    row = cursor.execute(GET["where"], (key,)).fetchone()
    if row is None:
        return None
    found = FoundJob._make(row)
    worker, until_ms = cursor.execute(EXPLAIN["lease"], (key,)).fetchone() or (None, None)
    ahead = 0
    if found.is_ready:
        (ahead,) = cursor.execute(EXPLAIN["ahead"], (*found.pending.ready_key, AHEAD_MAX)).fetchone()
    type, group, policy, paused, asked_at_ms, running, busy, full_until_ms, *state = cursor.execute(
        EXPLAIN["type"], (key, now_ms)
    ).fetchone()
    breaker = Breaker._make(state)
    facts = Facts(
        key, State(found.state), type, group, found.run_at_ms, bool(paused), breaker, asked_at_ms, ahead, worker,
        until_ms, policy, limit_key_of(found.lane), running, busy, is_probe_live(cursor, breaker), full_until_ms,
    )  # fmt: skip
    return explained(facts, now_ms)


def _candidates(cursor: sqlite3.Cursor, query: JobFilter, window: tuple[int, int], now_ms: int) -> list[int]:
    """The next positions after the cursor whose jobs may match: among all jobs, or merged from matching queues and
    states.
    """
    last, limit = window
    if is_by_dedupe_key(query):
        owners = json.dumps(dedupe_owners(query, count(cursor)))
        return newest_below((key for (key,) in cursor.execute(FIND["deduped"], (owners, query.dedupe_key))), window)
    if query.correlation_id is not None and query.order is Order.NEWEST:
        return [key for (key,) in cursor.execute(FIND["correlated"], (query.correlation_id, *window)).fetchall()]
    states = states_to_search(query)
    if query.type is None and query.group is None and not states:
        return [key for (key,) in cursor.execute(FIND["all"], window).fetchall()]
    places = _places(cursor, query)
    pending = (now_ms if query.due else INSTANT_MS_MAX, attempts_min(query))
    if query.order is Order.DUE:
        waiting = [queue for queue, state in places if state is State.PENDING]
        return sorted(chain.from_iterable(_due(cursor, (queue, last, limit), pending) for queue in waiting))[:limit]
    if query.order is Order.FAILED:
        dead = [queue for queue, state in places if state is State.FAILED]
        latest = chain.from_iterable(_latest(cursor, (queue, last, limit)) for queue in dead)
        return sorted(latest, reverse=True)[:limit]
    found = [
        _keys_of(cursor, (queue, *window), state, pending) for queue, state in places if not states or state in states
    ]
    return sorted(chain.from_iterable(found), reverse=True)[:limit]


def _places(cursor: sqlite3.Cursor, query: JobFilter) -> list[tuple[int, State]]:
    """The queues that match a filter, each with the states in which it may have jobs."""
    if query.type is None and query.states == {State.PROCESSING}:
        rows = cursor.execute(FIND["queues_processing"], (State.PROCESSING,)).fetchall()
    elif query.type is None:
        rows = cursor.execute(FIND["queues"]).fetchall()
    else:
        queues = cursor.execute(FIND["queues_of"], (query.type,)).fetchall()
        rows = [(queue, group, state) for queue, group in queues for state in State]
    return [(queue, State(state)) for queue, group, state in rows if query.group in (None, group)]


def _keys_of(cursor: sqlite3.Cursor, window: tuple[int, int, int], state: State, pending: tuple[int, int]) -> list[int]:
    match state:
        case State.PENDING:
            rows = cursor.execute(FIND["pending"], (*window, *pending))
        case State.PROCESSING:
            rows = cursor.execute(FIND["processing"], window)
        case _:
            rows = cursor.execute(FIND["finished"], (*window, state))
    return [key for (key,) in rows.fetchall()]


def _latest(cursor: sqlite3.Cursor, window: tuple[int, int, int]) -> list[int]:
    """The positions of a queue's dead letters, latest failure first."""
    queue, last, limit = window
    return [cursor_at(*row) for row in cursor.execute(FIND["latest"], (queue, *cursor_parts(last), limit)).fetchall()]


def _due(cursor: sqlite3.Cursor, window: tuple[int, int, int], pending: tuple[int, int]) -> Iterator[int]:
    """The positions of a queue's pending jobs as they become due: scheduled jobs, then each ready range."""
    queue, last, limit = window
    place = cursor_parts(last)
    rows = cursor.execute(FIND["scheduled"], (queue, *place, limit, *pending)).fetchall()
    ranges = list(islice(_ready(cursor, queue), READY_RANGES_MAX + 1))
    if len(ranges) > READY_RANGES_MAX:  # Scanning all of them is cheaper.
        rows += cursor.execute(FIND["ready"], (queue, *place, limit, pending[1])).fetchall()
    else:
        for lane, sort_priority, _ in ranges:
            one = (queue, lane, sort_priority, *place, limit, pending[1])
            rows += cursor.execute(FIND["ready_range"], one).fetchall()
    return (cursor_at(*row) for row in rows)


OLDEST = statements("oldest")
READY_RANGES_MAX: Final = 1_000
"""How many lanes and priorities are read one by one, each by its own index range."""
AFTER_EVERY_INSTANT_MS: Final = 2**63 - 1


def oldest(cursor: sqlite3.Cursor, now_ms: int) -> list[Oldest]:
    """When the oldest due job became due, for each type and group that has one."""
    queues = cursor.execute(OLDEST["queues"], (State.PENDING,)).fetchall()
    since = [(type, group, _since_ms(cursor, queue, now_ms)) for queue, type, group in queues]
    return [Oldest(type, group, since_ms) for type, group, since_ms in since if since_ms is not None]


def _since_ms(cursor: sqlite3.Cursor, queue: int, now_ms: int) -> int | None:
    due = cursor.execute(OLDEST["due"], (queue, now_ms)).fetchone()
    ready = [run_at_ms for *_, run_at_ms in islice(_ready(cursor, queue), OLDEST_SCAN_MAX) if run_at_ms <= now_ms]
    return min([*ready, *(due or ())], default=None)


def _ready(cursor: sqlite3.Cursor, queue: int) -> Iterator[tuple[str, int, int]]:
    """Each lane and priority with ready jobs, and its earliest run_at."""
    row = cursor.execute(OLDEST["first_ready"], (queue,)).fetchone()
    while row is not None:
        yield row
        lane, sort_priority, _ = row
        row = cursor.execute(OLDEST["next_ready"], (queue, lane, sort_priority, AFTER_EVERY_INSTANT_MS)).fetchone()
