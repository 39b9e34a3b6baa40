"""Jobs and figures as messages of our own service: what is known of a job, without loss of types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from everwork.core.job import HistoryEntry, Job
from everwork.core.states import State
from everwork.engines.values import Explanation, Judged, Page, Stats, Verdict
from everwork.proto import work_pb2 as pb

PAGE_BYTES_MAX: Final = 3 * 1024 * 1024
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
    jobs: list[pb.JobView] = []
    size = 0
    for job in page.jobs:
        view = job_view(job)
        size += view.ByteSize()
        if jobs and size > PAGE_BYTES_MAX:
            return pb.Page(jobs=jobs, next=jobs[-1].key)
        jobs.append(view)
    return pb.Page(jobs=jobs, next=page.next or 0)


def history_view(entries: list[HistoryEntry]) -> pb.HistoryResponse:
    """How a job's attempts ended."""
    return pb.HistoryResponse(entries=[pb.HistoryEntry(**entry._asdict()) for entry in entries])


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
    """Counts, and what workers did lately."""
    counts = [
        pb.Count(tenant=c.tenant, type=c.type, group=c.group, state=int(c.state), jobs=c.jobs) for c in stats.counts
    ]
    hours = [pb.WorkerHour(**hour._asdict()) for hour in stats.hours]
    return pb.StatsResponse(counts=counts, hours=hours, generated_at_ms=stats.generated_at_ms)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
