"""get, history, list, count, stats, measures, oldest, explain: questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from everwork.core.job import HistoryEntry, Job
from everwork.core.limits import DEFAULT_TENANT, HISTORY_ENTRIES_MAX, INSTANT_MS_MAX, LIST_SCAN_MAX
from everwork.core.queries import Count, Explanation, JobFilter, Measure, Oldest, Page, Stats, WorkerHour
from everwork.core.states import State
from everwork.engines.portions import PageBuilder
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.records import (
    LETTER_OF,
    LETTERS,
    SEPARATOR,
    Record,
    history_of,
    id_of,
    job_of,
    lane_parts,
    queue_parts,
)
from everwork.engines.redis.registry import breaker_of, fields_of, rate_full_until_ms
from everwork.engines.redis.wire import Word
from everwork.engines.rules import AHEAD_MAX, Facts, attempts_min, explained, states_to_search

TOP: Final = "9" * 16
WORK: Final = ("completed", "failed", "retried", "execution", "wait")
"""What is summed up by worker, in the order of `WorkerHour`."""
GET_STEP: Final = 500
LIST_STEP_MAX: Final = 2_000
"""How many short states one script reads: nobody else is served meanwhile."""
PAYLOADS_MAX: Final = 2_000
"""How many payloads a list reads in one call when only they can tell whether a job matches."""


async def get(link: Connection, keys: Sequence[int]) -> list[Job | None]:
    """Jobs by key, in the order asked for."""
    jobs: list[Job | None] = []
    for start in range(0, len(keys), GET_STEP):
        some = keys[start : start + GET_STEP]
        columns = await link.read("get", *map(id_of, some))
        jobs += [job_of(key, stored) for key, *stored in zip(some, *columns, strict=True)]
    return jobs


async def owners(link: Connection, keys: Sequence[int]) -> list[str | None]:
    """The tenants of jobs, in the order asked for."""
    owners: list[str | None] = []
    for start in range(0, len(keys), LIST_STEP_MAX):
        lanes = await link.read("owners", *map(id_of, keys[start : start + LIST_STEP_MAX]))
        owners += [None if lane is None else lane_parts(lane.decode())[0] for lane in lanes]
    return owners


async def history(link: Connection, key: int) -> list[HistoryEntry]:
    """The written history, and the end that stands with the finished job."""
    stored, error, entries = await link.read("history", id_of(key))
    record = Record(stored) if stored is not None else None
    return history_of(record, error, entries)[-HISTORY_ENTRIES_MAX:]


async def count(link: Connection) -> list[Count]:
    """The maintained counts."""
    return _counts(await link.read("count"))


async def stats(link: Connection, hours: int) -> Stats:
    """Counts, and the sums of the hours asked for."""
    now, counts, *told = await link.read("stats", hours)
    return Stats(_counts(counts), _hours(_fields(told)), int(now))


async def measures(link: Connection, hours: int, type: str | None) -> list[Measure]:
    """Read some hours and types after the others: nobody else is served meanwhile."""
    found: list[Measure] = []
    hour: Word = ""
    last: Word = ""
    while True:
        hour, last, *told = await link.read("measures", hours, type or "", hour, last)
        found += _measures(told)
        if not hour:
            return sorted(found)


async def oldest(link: Connection) -> list[Oldest]:
    """Look at some types after the others: nobody else is served meanwhile."""
    found: list[Oldest] = []
    behind: Word = ""
    while True:
        behind, *told = await link.read("oldest", behind)
        found += [Oldest(*queue_parts(queue.decode()), int(run_at)) for queue, run_at in _pairs(told)]
        if not behind:
            return sorted(found)


async def explain(link: Connection, key: int) -> Explanation | None:
    """Read what a claim would look at; what it means is said in one place for every engine."""
    reply = await link.read("explain", id_of(key))
    if reply is None:
        return None
    now, stored, told, has_probe, running, lane_running, ahead, lease = reply
    record, fields = Record(stored), fields_of(told)
    type, group = record.queue
    facts = Facts(
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
        lease_until_ms=int(float(lease)) if lease else None,
        policy=fields.get("policy"),
        limit_key=lane_parts(record.fields[7])[1],
        running=running,
        lane_running=lane_running,
        is_probe_live=bool(has_probe),
        rate_full_until_ms=rate_full_until_ms(fields, group),
    )
    return explained(facts, int(now))


async def find(link: Connection, wanted: JobFilter, limit: int, cursor: int | None) -> Page:
    """Walk candidates newest first, a bounded number of them; their short states tell which are worth reading."""
    below = TOP if cursor is None else id_of(min(cursor, int(TOP)))
    letters = "".join(LETTER_OF[state] for state in states_to_search(wanted) or set(State))
    pending = ("d" if wanted.due else "") + ("t" if attempts_min(wanted) else "")
    asked: tuple[Word, ...] = (pending, *_created(wanted), *_contained(wanted))
    filling = PageBuilder(wanted, limit)
    seen, read, step = 0, 0, max(limit + 1, 200)
    while seen < LIST_SCAN_MAX and read < PAYLOADS_MAX:
        after, ids, stored, now, looked_at = await link.read("find", below, step, letters, *asked)
        found = [(int(id), Record(state)) for id, state in zip(ids, stored, strict=True)]
        left = [key for key, record in found if _may_match(record, wanted, int(now))]
        while left:
            if filling.is_full:
                return filling.page()
            few, left = left[: filling.step], left[filling.step :]
            filling.add(await get(link, few), int(now))
            read += len(few)
            if read >= PAYLOADS_MAX and left:
                return Page(filling.jobs, few[-1])
        if not after:
            return Page(filling.jobs, None)
        below, seen = after.decode(), seen + looked_at
        step = min(step * 2, LIST_STEP_MAX, max(LIST_SCAN_MAX - seen, 1))
    return Page(filling.jobs, int(below))


def _created(wanted: JobFilter) -> tuple[str, str]:
    """From which instant on and before which jobs were created, as their states say it."""
    end_ms = INSTANT_MS_MAX if wanted.created_before_ms is None else wanted.created_before_ms
    return f"{min(wanted.created_after_ms or 0, INSTANT_MS_MAX):015d}", f"{min(end_ms, INSTANT_MS_MAX):015d}"


def _contained(wanted: JobFilter) -> Iterator[str]:
    """What the short states of all matching jobs contain."""
    if wanted.type is not None:
        yield f"\n{wanted.type}"
    if wanted.worker is not None:
        yield f"\n{wanted.worker}"
    if len(wanted.tenants) == 1 and wanted.tenants[0] != DEFAULT_TENANT:
        yield f"\n{wanted.tenants[0]}{SEPARATOR}"


def _may_match(record: Record, wanted: JobFilter, now_ms: int) -> bool:
    """Whether a filter may show a job, as far as its short state tells."""
    type, group = record.queue
    return (
        wanted.type in (None, type)
        and wanted.group in (None, group)
        and (not wanted.states or record.state in wanted.states)
        and (not wanted.tenants or record.tenant in wanted.tenants)
        and wanted.worker in (None, record.worker)
        and (wanted.created_after_ms is None or record.created_at_ms >= wanted.created_after_ms)
        and (wanted.created_before_ms is None or record.created_at_ms < wanted.created_before_ms)
        and (not wanted.due or (record.state is State.PENDING and record.run_at_ms <= now_ms))
        and (not wanted.error_text or record.state is not State.COMPLETED)
    )


def _counts(told: Sequence[Any]) -> list[Count]:
    counts = []
    for field, jobs in _pairs(told):
        letter, queue, tenant = field.decode().split("\n")
        type, group = queue_parts(queue)
        counts.append(Count(tenant or DEFAULT_TENANT, type, group, LETTERS[letter], int(jobs)))
    return sorted(counts, key=lambda one: (one.type, one.group, one.tenant, one.state))


class _Field(NamedTuple):
    """One sum of an hour."""

    hour: int
    what: str
    type: str
    worker: str
    sum: int


def _fields(told: Sequence[Any]) -> Iterator[_Field]:
    for hour, sums in _pairs(told):
        for field, number in _pairs(sums):
            what, type, worker = field.decode().split("\n")
            yield _Field(int(hour), what, type, worker, int(number))


def _hours(fields: Iterable[_Field]) -> list[WorkerHour]:
    """What workers did; the sums of each stand in several fields."""
    sums: dict[tuple[int, str, str], dict[str, int]] = {}
    for field in fields:
        if field.what in WORK:
            sums.setdefault((field.hour, field.type, field.worker), {})[field.what] = field.sum
    return sorted(WorkerHour(*who, *(some.get(what, 0) for what in WORK)) for who, some in sums.items())


def _measures(told: Sequence[Any]) -> list[Measure]:
    """In order, so that it is quick to put all of them in order."""
    return sorted(
        Measure(int(hour), type.decode(), what.decode(), int(jobs))
        for hour, type, sums in zip(told[::3], told[1::3], told[2::3], strict=True)
        for what, jobs in _pairs(sums)
    )


def _pairs(told: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(told[::2], told[1::2], strict=True)
