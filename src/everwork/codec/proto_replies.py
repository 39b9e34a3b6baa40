"""Replies of everwork.v1 to and from messages: jobs, verdicts, pages, histories, explanations, statistics.

Lists are cut where they would be too large for one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from google.protobuf.message import Message

from everwork.codec.fields import MessageFields
from everwork.core.job import HistoryEntry, Job
from everwork.core.leasing import Judged, Verdict
from everwork.core.queries import Count, Explanation, Page, Stats, WorkerHour
from everwork.core.states import State
from everwork.proto import work_pb2 as pb

MESSAGE_BYTES_MAX: Final = 3 * 1024 * 1024
"""Clients refuse messages over 4 MiB."""
FIELD_BYTES_MAX: Final = 6
"""What a message costs beyond its own bytes inside another one."""
LIST_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 100
"""Leaves space for a few numbers in addition to the list."""
HISTORY_ERROR_BYTES_MAX: Final = 12 * 1024

Item = TypeVar("Item", bound=Message)


# Jobs -----------------------------------------------------------------------------------------------

_JOBS: Final = MessageFields(Job, pb.JobView)


def job_message(job: Job) -> pb.JobView:
    """A job with everything that is known of it."""
    return _JOBS.message(job)


def job_of(message: pb.JobView) -> Job:
    """A job with everything that is known of it."""
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


def found_message(state: State) -> pb.Found:
    """The state in which a job was found."""
    return pb.Found(state=int(state))


# Answers to questions -------------------------------------------------------------------------------


def page_message(page: Page) -> pb.Page:
    """A page, cut where it would be too large for one message: the rest belongs to the next page."""
    jobs = next(portions(map(job_message, page.jobs), LIST_BYTES_MAX), [])
    is_cut = len(jobs) < len(page.jobs)
    return pb.Page(jobs=jobs, next=jobs[-1].key if is_cut else page.next or 0)


def page_of(message: pb.Page) -> Page:
    """Jobs, newest first."""
    return Page([job_of(job) for job in message.jobs], message.next or None)


_HISTORY: Final = MessageFields(HistoryEntry, pb.HistoryEntry)


def history_message(entries: list[HistoryEntry]) -> pb.HistoryResponse:
    """How a job's attempts ended; errors are cut where they are too much for one message."""
    message = pb.HistoryResponse(entries=map(_HISTORY.message, entries))
    if message.ByteSize() > LIST_BYTES_MAX:
        for entry in message.entries:
            entry.error = entry.error.encode()[:HISTORY_ERROR_BYTES_MAX].decode(errors="ignore")
    return message


def history_of(message: pb.HistoryResponse) -> list[HistoryEntry]:
    """How a job's attempts ended."""
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
    """Counts and workers' hours; where they are too much for one message, the largest counts and latest hours."""
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
    """Counts and workers' hours."""
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
