"""Queries: get, owners, history, find, count, stats, measures, oldest, explain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.limits import DEFAULT_TENANT, HISTORY_ENTRIES_MAX, INSTANT_MS_MAX, LIST_SCAN_MAX, SEARCH_BYTES_MAX
from everwork.core.queries import (
    Count,
    Explanation,
    JobFilter,
    Measure,
    Oldest,
    Page,
    Stats,
    WorkerHour,
    cursor_at,
    cursor_parts,
)
from everwork.core.states import State
from everwork.engines.contract.questions import Questions
from everwork.engines.portions import PageBuilder, batches, dedupe_owners, first_cursor, is_by_dedupe_key, newest_below
from everwork.engines.redis.opened import RedisBase
from everwork.engines.redis.records import (
    LETTER_OF,
    SEPARATOR,
    STATE_OF,
    Record,
    dedupe_field,
    found_job,
    history_of,
    id_of,
    lane_parts,
    pairs,
    queue_parts,
    record_of,
)
from everwork.engines.redis.registry import breaker_of, fields_of, rate_full_until_ms
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import AHEAD_MAX, Facts, attempts_min, explained, readable, states_to_search
from everwork.exceptions import InvalidInput

TOP: Final = "9" * 16
WORK_SUMS: Final = ("completed", "failed", "retried", "execution", "wait")
"""The sums per worker, in the order of `WorkerHour`."""
GET_STEP: Final = 500
LIST_STEP_MAX: Final = 2_000
"""How many states one script reads; while a script runs, the server serves no other client."""
PAYLOADS_MAX: Final = 2_000
"""How many payloads `find` reads in one call when states do not suffice to decide whether a job matches."""


class RedisQuestions(RedisBase, Questions):
    """Queries; long results are read in steps, because the server serves no other client while a script runs."""

    async def get(self, keys: Sequence[int]) -> list[StoredJob | None]:
        connection = self._connection
        jobs: list[StoredJob | None] = []
        for start in range(0, len(keys), GET_STEP):
            step = keys[start : start + GET_STEP]
            columns = await connection.read("get", *map(id_of, step))
            jobs += map(found_job, zip(step, *columns, strict=True))
        return jobs

    async def owners(self, keys: Sequence[int]) -> list[str | None]:
        connection = self._connection
        owners: list[str | None] = []
        for start in range(0, len(keys), LIST_STEP_MAX):
            lanes = await connection.read("owners", *map(id_of, keys[start : start + LIST_STEP_MAX]))
            owners += [None if lane is None else lane_parts(lane.decode())[0] for lane in lanes]
        return owners

    async def history(self, key: int) -> list[HistoryEntry]:
        stored, error, entries = await self._connection.read("history", id_of(key))
        found = readable(record_of, [] if stored is None else [stored])
        return history_of(found[0] if found else None, error, entries)[-HISTORY_ENTRIES_MAX:]

    async def count(self) -> list[Count]:
        return _counts(await self._connection.read("count"))

    async def stats(self, hours: int) -> Stats:
        now, counts, *sums = await self._connection.read("stats", hours)
        return Stats(_counts(counts), _worker_hours(_hour_sums(sums)), int(now))

    async def measures(self, hours: int, type: str | None = None) -> list[Measure]:
        connection = self._connection
        found: list[Measure] = []
        last_hour: Arg = ""
        last_type: Arg = ""
        while True:
            last_hour, last_type, *sums = await connection.read("measures", hours, type or "", last_hour, last_type)
            found += _measures(sums)
            if not last_hour:
                return sorted(found)

    async def hour_totals(self, hours: int, type: str | None = None) -> list[Measure]:
        found: list[Measure] = []
        last_hour: Arg = ""
        while True:
            last_hour, *totals = await self._connection.read("hour_totals", hours, type or "", last_hour)
            for hour, sums in pairs(totals):
                named = ((name.decode(), int(by)) for name, by in pairs(sums))
                found += [Measure(int(hour), "", name, by) for name, by in named if by]
            if not last_hour:
                return sorted(found)

    async def oldest(self) -> list[Oldest]:
        connection = self._connection
        queues = await connection.read("oldest")
        found: list[Oldest] = []
        while queues:
            read, *due = await connection.read("oldest", *queues[:LIST_STEP_MAX])
            found += [Oldest(*queue_parts(queue.decode()), int(run_at)) for queue, run_at in pairs(due)]
            queues = queues[int(read) :]
        return sorted(found)

    async def explain(self, key: int) -> Explanation | None:
        reply = await self._connection.read("explain", id_of(key))
        if reply is None:
            return None
        now, *rest = reply
        return explained(_facts(key, rest), int(now))

    async def find(self, query: JobFilter, limit: int, cursor: int | None = None) -> Page:
        # Candidates arrive in order; their short states rule out most of them before a payload is read.
        connection = self._connection
        last = first_cursor(query) if cursor is None else cursor
        # Differs from sqlite and postgres: the jobs with the dedupe key are looked up first in every order, so too many
        # types and tenants are refused in every order.
        now_ms, holders = (0, None) if query.dedupe_key is None else await self._holders(query)
        builder = PageBuilder(query, limit)
        if holders is not None and is_by_dedupe_key(query):
            return await self._of_holders(builder, newest_below(holders, (last, len(holders))), now_ms)
        conditions = _conditions(query)
        seen, step = 0, max(limit + 1, 200)
        while seen < LIST_SCAN_MAX and not _has_read_enough(query, builder):
            reply = await connection.read("find", query.order.label[0], *_place(last), step, *conditions)
            if reply is None:
                raise InvalidInput(
                    "order", f"'due' would read more than {LIST_SCAN_MAX:,} lanes; name a type with fewer"
                )
            instant, next_id, ids, instants, states, now, scanned = reply
            found = readable(_candidate, zip(instants, ids, states, strict=True))
            places = [
                cursor_at(at, key)
                for at, key, record in found
                if _may_match(record, query, int(now)) and (holders is None or key in holders)
            ]
            left = builder.keys(places)
            while left:
                if builder.is_full:
                    return builder.page()
                few, left = left[: builder.step], left[builder.step :]
                builder.add(await self.get(few), int(now))
                if left and _has_read_enough(query, builder):
                    return Page(builder.jobs, places[-len(left) - 1])
            if not next_id:
                return Page(builder.jobs, None)
            last, seen = cursor_at(int(instant), int(next_id)), seen + scanned
            step = min(step * 2, LIST_STEP_MAX, max(LIST_SCAN_MAX - seen, 1))
        return Page(builder.jobs, last)

    async def _holders(self, query: JobFilter) -> tuple[int, set[int]]:
        """The server's current time, and the jobs that hold the dedupe key of a query."""
        owners = dedupe_owners(query, await self.count())
        fields = [dedupe_field(type, tenant, query.dedupe_key or "") for type, tenant in owners]
        now, holders = 0, set[int]()
        for step in batches(fields, LIST_STEP_MAX):
            now, ids = await self._connection.read("find", "k", *step)
            holders |= set(map(int, ids))
        return int(now), holders

    async def _of_holders(self, builder: PageBuilder, keys: Sequence[int], now_ms: int) -> Page:
        """The page of the jobs among these keys that match."""
        while keys:
            if builder.is_full:
                return builder.page()
            few, keys = keys[: builder.step], keys[builder.step :]
            builder.add(await self.get(few), now_ms)
            if keys and builder.jobs_read >= PAYLOADS_MAX:
                return Page(builder.jobs, few[-1])
        return Page(builder.jobs, None)


def _candidate(found: tuple[bytes, bytes, bytes]) -> tuple[int, int, Record]:
    """A job that may match: its sort key, its job key, and its state."""
    instant, id, state = found
    return int(instant), int(id), record_of(state)


def _has_read_enough(query: JobFilter, builder: PageBuilder) -> bool:
    """Whether one call has reached its limit of payloads to read or bytes to search."""
    is_searched = query.variables_text is not None and builder.bytes_read >= SEARCH_BYTES_MAX
    return is_searched or builder.jobs_read >= PAYLOADS_MAX


def _facts(key: int, reply: Sequence[Any]) -> Facts:
    """What explain.lua returns after the current time, converted for the rules shared by all engines."""
    state, type_fields, has_probe, running, lane_running, ahead, lease_end = reply
    record, fields = record_of(state), fields_of(type_fields)
    type, group = queue_parts(record.queue)
    return Facts(
        key=key,
        state=record.state,
        type=type,
        group=group,
        run_at_ms=record.run_at_ms,
        is_paused=fields.get("paused") == "1",
        breaker=breaker_of(fields),
        asked_at_ms=int(fields[asked]) if (asked := f"asked\n{group}") in fields else None,
        ahead=min(ahead, AHEAD_MAX),
        worker=record.worker,
        lease_until_ms=int(float(lease_end)) if lease_end else None,
        policy=fields.get("policy"),
        limit_key=lane_parts(record.lane)[1],
        running=running,
        lane_running=lane_running,
        is_probe_live=bool(has_probe),
        rate_full_until_ms=rate_full_until_ms(fields, group),
    )


def _conditions(query: JobFilter) -> tuple[str, ...]:
    """What find.lua checks: states, only due or attempted jobs, the range of creation times, strings that a state
    contains.
    """
    letters = "".join(LETTER_OF[state] for state in states_to_search(query) or set(State))
    pending = ("d" if query.due else "") + ("t" if attempts_min(query) else "")
    return query.type or "", letters, pending, *_created_span(query), *_contained_texts(query)


def _place(cursor: int) -> tuple[int, str]:
    """A cursor as the scripts know it."""
    instant_ms, key = cursor_parts(cursor)
    return instant_ms, id_of(min(key, int(TOP)))


def _created_span(query: JobFilter) -> tuple[str, str]:
    """The range of creation times, with the digits used in job states."""
    end_ms = INSTANT_MS_MAX if query.created_before_ms is None else query.created_before_ms
    return f"{min(query.created_after_ms or 0, INSTANT_MS_MAX):015d}", f"{min(end_ms, INSTANT_MS_MAX):015d}"


def _contained_texts(query: JobFilter) -> Iterator[str]:
    """Strings that the states of all matching jobs contain."""
    if query.type is not None:
        yield f"\n{query.type}"
    if query.worker is not None:
        yield f"\n{query.worker}"
    if len(query.tenants) == 1 and query.tenants[0] != DEFAULT_TENANT:
        yield f"\n{query.tenants[0]}{SEPARATOR}"


def _may_match(record: Record, query: JobFilter, now_ms: int) -> bool:
    """Whether a job may match, judging by its state alone."""
    type, group = queue_parts(record.queue)
    return (
        query.type in (None, type)
        and query.group in (None, group)
        and (not query.states or record.state in query.states)
        and (not query.tenants or record.tenant in query.tenants)
        and query.worker in (None, record.worker)
        and (query.created_after_ms is None or record.created_at_ms >= query.created_after_ms)
        and (query.created_before_ms is None or record.created_at_ms < query.created_before_ms)
        and (not query.due or (record.state is State.PENDING and record.run_at_ms <= now_ms))
        and (not query.error_text or record.state is not State.COMPLETED)
    )


def _counts(reply: Sequence[Any]) -> list[Count]:
    counts = []
    for field, jobs in pairs(reply):
        letter, queue, tenant = field.decode().split("\n")
        type, group = queue_parts(queue)
        counts.append(Count(tenant or DEFAULT_TENANT, type, group, STATE_OF[letter], int(jobs)))
    return sorted(counts, key=lambda one: (one.type, one.group, one.tenant, one.state))


class _HourSum(NamedTuple):
    """One sum of one worker in one hour."""

    hour: int
    name: str
    type: str
    worker: str
    sum: int


def _hour_sums(reply: Sequence[Any]) -> Iterator[_HourSum]:
    for hour, sums in pairs(reply):
        for field, number in pairs(sums):
            name, type, worker = field.decode().split("\n")
            yield _HourSum(int(hour), name, type, worker, int(number))


def _worker_hours(hour_sums: Iterable[_HourSum]) -> list[WorkerHour]:
    """The sums of each hour, type and worker, gathered from several fields."""
    gathered: dict[tuple[int, str, str], dict[str, int]] = {}
    for one in hour_sums:
        if one.name in WORK_SUMS:
            gathered.setdefault((one.hour, one.type, one.worker), {})[one.name] = one.sum
    return sorted(WorkerHour(*worker, *(sums.get(name, 0) for name in WORK_SUMS)) for worker, sums in gathered.items())


def _measures(reply: Sequence[Any]) -> list[Measure]:
    """The measures of a reply, already sorted, so that the final sort of all of them is fast."""
    return sorted(
        Measure(int(hour), type.decode(), name.decode(), int(jobs))
        for hour, type, sums in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        for name, jobs in pairs(sums)
    )
