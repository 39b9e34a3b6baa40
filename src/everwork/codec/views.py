"""Jobs and figures as messages of our own service: what is known of a job, without loss of types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from everwork.core.job import HistoryEntry, Job
from everwork.core.leasing import Judged, Verdict
from everwork.core.queries import Explanation, Page, Stats
from everwork.core.states import State
from everwork.proto import work_pb2 as pb
from everwork.server.grpc.delivery import MESSAGE_BYTES_MAX, portions

LIST_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 100
"""A few numbers may stand beside the list."""
HISTORY_ERROR_BYTES_MAX: Final = 12 * 1024
VERDICTS: Final[Mapping[Verdict, int]] = {
    Verdict.ACCEPTED: pb.ACCEPTED,
    Verdict.REPEATED: pb.REPEATED,
    Verdict.NOT_FOUND: pb.REFUSED_NOT_FOUND,
    Verdict.WRONG_STATE: pb.REFUSED_WRONG_STATE,
    Verdict.LEASE_LOST: pb.REFUSED_LEASE_LOST,
}
_SAME: Final = (
    "key", "type", "tenant", "group", "priority", "attempt", "attempts", "max_attempts", "retries", "created_at_ms",
    "run_at_ms", "activated_at_ms", "lease_until_ms", "finished_at_ms", "expires_at_ms", "timeout_ms", "worker",
    "last_error", "error_code", "rejected", "dedupe_key", "limit_key", "correlation_id", "copy_of",
)  # fmt: skip


def job_view(job: Job) -> pb.JobView:
    """A job as it stands."""
    return pb.JobView(
        state=int(job.state),
        variables=job.variables.encode(),
        headers=_bytes(job.headers),
        result=_bytes(job.result),
        extra=_bytes(job.extra),
        **{name: getattr(job, name) for name in _SAME},
    )


def judged_view(judged: Judged) -> pb.Judged:
    """The verdict on one item."""
    return pb.Judged(verdict=VERDICTS[judged.verdict], state=int(judged.state or 0))


def found_view(state: State) -> pb.Found:
    """The state in which a job was found."""
    return pb.Found(state=int(state))


def page_view(page: Page) -> pb.Page:
    """A page, cut where it would be too large for one message: the rest is the next page's."""
    jobs = next(portions(map(job_view, page.jobs), LIST_BYTES_MAX), [])
    is_cut = len(jobs) < len(page.jobs)
    return pb.Page(jobs=jobs, next=jobs[-1].key if is_cut else page.next or 0)


def history_view(entries: list[HistoryEntry]) -> pb.HistoryResponse:
    """How a job's attempts ended; where that is too much for one message, errors are cut."""
    view = pb.HistoryResponse(entries=[pb.HistoryEntry(**entry._asdict()) for entry in entries])
    if view.ByteSize() > LIST_BYTES_MAX:
        for entry in view.entries:
            entry.error = entry.error.encode()[:HISTORY_ERROR_BYTES_MAX].decode(errors="ignore")
    return view


def explanation_view(explanation: Explanation) -> pb.Explanation:
    """Why a job is not running."""
    return pb.Explanation(
        key=explanation.key,
        state=int(explanation.state),
        reason=explanation.reason.value,
        text=explanation.text,
        until_ms=explanation.until_ms,
        worker=explanation.worker,
        ahead=explanation.ahead,
    )


def stats_view(stats: Stats) -> pb.StatsResponse:
    """Counts, and what workers did lately; where that is too much for one message, the largest and the latest."""
    counts = [
        pb.Count(tenant=c.tenant, type=c.type, group=c.group, state=int(c.state), jobs=c.jobs) for c in stats.counts
    ]
    hours = [pb.WorkerHour(**hour._asdict()) for hour in stats.hours]
    view = pb.StatsResponse(counts=counts, hours=hours, generated_at_ms=stats.generated_at_ms)
    if view.ByteSize() <= LIST_BYTES_MAX:
        return view
    counts.sort(key=lambda count: count.jobs, reverse=True)
    hours.sort(key=lambda row: row.hour, reverse=True)
    half = LIST_BYTES_MAX // 2
    largest, latest = next(portions(counts, half), []), next(portions(hours, half), [])
    return pb.StatsResponse(counts=largest, hours=latest, generated_at_ms=stats.generated_at_ms, partial=True)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
