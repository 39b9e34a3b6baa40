"""Replies of everwork.v1, to and from messages: jobs, verdicts, pages, histories, explanations, statistics.

Lists are truncated where they would be too large for one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from google.protobuf.message import Message

from everwork.codec.fields import MessageFields
from everwork.core.job import HistoryEntry, StoredJob
from everwork.core.leasing import Created, Judged, Spooled, Verdict
from everwork.core.queries import (
    Count,
    Explanation,
    Order,
    Page,
    Stats,
    WorkerHour,
    cursor_at,
    cursor_of,
    cursor_parts,
)
from everwork.core.states import State
from everwork.proto import work_pb2 as pb

MESSAGE_BYTES_MAX: Final = 3 * 1024 * 1024
"""Clients refuse messages over 4 MiB."""
FIELD_BYTES_MAX: Final = 6
"""The overhead of a message nested in another one."""
LIST_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 100
"""Leaves room for a few numbers alongside the list."""
HISTORY_ERROR_BYTES_MAX: Final = 12 * 1024

Item = TypeVar("Item", bound=Message)


# Jobs -----------------------------------------------------------------------------------------------

_JOBS: Final = MessageFields(StoredJob, pb.JobView)


def job_message(job: StoredJob) -> pb.JobView:
    """A job with all its fields."""
    return _JOBS.message(job)


def job_of(message: pb.JobView) -> StoredJob:
    """A job with all its fields."""
    return _JOBS.value(message)


# Verdicts -------------------------------------------------------------------------------------------

_TO_VERDICT: Final[Mapping[Verdict, int]] = {
    Verdict.ACCEPTED: pb.ACCEPTED,
    Verdict.REPEATED: pb.REPEATED,
    Verdict.NOT_FOUND: pb.REFUSED_NOT_FOUND,
    Verdict.WRONG_STATE: pb.REFUSED_WRONG_STATE,
    Verdict.LEASE_LOST: pb.REFUSED_LEASE_LOST,
}
_FROM_VERDICT: Final = {number: verdict for verdict, number in _TO_VERDICT.items()}


def judged_message(judged: Judged) -> pb.Judged:
    """The verdict on one item."""
    return pb.Judged(verdict=_TO_VERDICT[judged.verdict], state=int(judged.state or 0))


def judged_of(message: pb.Judged) -> Judged:
    """The verdict on one item."""
    return Judged(_FROM_VERDICT[message.verdict], State(message.state) if message.state else None)


def created_message(created: Created) -> pb.CreatedJob:
    """A created job, or a spooled one that has no key yet."""
    if created.is_spooled:
        return pb.CreatedJob(spool_id=created.spool_id)
    return pb.CreatedJob(key=created.key, deduplicated=created.deduplicated)


def created_of(message: pb.CreatedJob) -> Created:
    """A created job; a job spooled by the server has its negated spool id as key."""
    if not message.spool_id:
        return Created(message.key, message.deduplicated)
    number = message.spool_id.rpartition("-")[2]
    return Created(-int(number) if number.isdecimal() else 0, spool_id=message.spool_id)


def spooled_message(spooled: Spooled) -> pb.SpooledJob:
    """The status of a spooled job."""
    key, deduplicated, _ = spooled.created or Created(0)
    return pb.SpooledJob(key=key, deduplicated=deduplicated, reason=spooled.reason or "")


def spooled_of(message: pb.SpooledJob) -> Spooled:
    """The status of a spooled job."""
    return Spooled(Created(message.key, message.deduplicated) if message.key else None, message.reason or None)


def found_message(state: State) -> pb.Found:
    """The state in which a job was found."""
    return pb.Found(state=int(state))


# Query results -------------------------------------------------------------------------------


def page_message(page: Page, order: Order) -> pb.Page:
    """A page, truncated where it would be too large for one message: the rest goes to the next page."""
    jobs = next(portions(map(job_message, page.jobs), LIST_BYTES_MAX), [])
    is_cut = len(jobs) < len(page.jobs)
    next_ms, key = cursor_parts(cursor_of(page.jobs[len(jobs) - 1], order) if is_cut else page.next or 0)
    return pb.Page(jobs=jobs, next=key, next_ms=next_ms)


def page_of(message: pb.Page) -> Page:
    """A page, with the cursor of the next page."""
    return Page([job_of(job) for job in message.jobs], cursor_at(message.next_ms, message.next) or None)


_HISTORY: Final = MessageFields(HistoryEntry, pb.HistoryEntry)


def history_message(entries: list[HistoryEntry]) -> pb.HistoryResponse:
    """The history of a job; if it exceeds one message, errors are truncated, then the oldest tracebacks are dropped."""
    message = pb.HistoryResponse(entries=map(_HISTORY.message, entries))
    size = message.ByteSize()
    if size > LIST_BYTES_MAX:
        for entry in message.entries:
            entry.error = entry.error.encode()[:HISTORY_ERROR_BYTES_MAX].decode(errors="ignore")
        size = message.ByteSize()
    for entry in message.entries:
        if size <= LIST_BYTES_MAX:
            break
        size -= len(entry.traceback.encode())
        entry.ClearField("traceback")
    return message


def history_of(message: pb.HistoryResponse) -> list[HistoryEntry]:
    """The history of a job's attempts."""
    return [_HISTORY.value(entry) for entry in message.entries]


_EXPLANATIONS: Final = MessageFields(Explanation, pb.Explanation)


def explanation_message(explanation: Explanation) -> pb.Explanation:
    """Why a job is not running."""
    return _EXPLANATIONS.message(explanation)


def explanation_of(message: pb.Explanation) -> Explanation:
    """Why a job is not running."""
    return _EXPLANATIONS.value(message)


_COUNTS: Final = MessageFields(Count, pb.Count)
_HOURS: Final = MessageFields(WorkerHour, pb.WorkerHour)


def stats_message(stats: Stats) -> pb.StatsResponse:
    """Job counts and worker hours; if too large for one message, the largest counts and latest hours."""
    counts, hours = list(map(_COUNTS.message, stats.counts)), list(map(_HOURS.message, stats.hours))
    message = pb.StatsResponse(counts=counts, hours=hours, generated_at_ms=stats.generated_at_ms)
    if message.ByteSize() <= LIST_BYTES_MAX:
        return message
    counts.sort(key=lambda count: count.jobs, reverse=True)
    hours.sort(key=lambda row: row.hour, reverse=True)
    half = LIST_BYTES_MAX // 2
    largest, latest = next(portions(counts, half), []), next(portions(hours, half), [])
    return pb.StatsResponse(counts=largest, hours=latest, generated_at_ms=stats.generated_at_ms, partial=True)


def stats_of(message: pb.StatsResponse) -> Stats:
    """Job counts and worker hours."""
    counts, hours = list(map(_COUNTS.value, message.counts)), list(map(_HOURS.value, message.hours))
    return Stats(counts, hours, message.generated_at_ms, message.partial)


# Sizes ----------------------------------------------------------------------------------------------


def portions(messages: Iterable[Item], bytes_max: int = MESSAGE_BYTES_MAX) -> Iterator[list[Item]]:
    """Messages in groups of at most `bytes_max`; a single message over that size forms its own group."""
    group: list[Item] = []
    size = 0
    for message in messages:
        message_size = message.ByteSize() + FIELD_BYTES_MAX
        if group and size + message_size > bytes_max:
            yield group
            group, size = [], 0
        group.append(message)
        size += message_size
    if group:
        yield group
