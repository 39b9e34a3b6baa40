"""The status of a store in one sentence: each status is a word and a tone, so that words and color always agree."""

from __future__ import annotations

from typing import Final, NamedTuple

from everwork.server.http.ui.address import address
from everwork.server.http.ui.render import duration, number
from everwork.service.monitor.minutes import Span, Work

ELEVATED_SHARE: Final = 0.1
DEGRADED_SHARE: Final = 0.5
"""At this share of failed attempts or more, the status is no longer healthy."""
FEW_ATTEMPTS: Final = 20
"""Up to this number of attempts, failures are shown as a count, not as a percentage."""
LATE_MS: Final = 60_000
"""Due jobs that have waited longer than this are reported."""
FEW_SECONDS: Final = 10
RATE_SECONDS: Final = 90
"""Over a shorter time, completed jobs are shown as a count, not as a rate."""


class Level(NamedTuple):
    """A status: the words that the sentence starts with, and the tone (CSS class `glance-TONE`)."""

    words: str
    tone: str


HEALTHY: Final = Level("Healthy", "good")
WORKING: Final = Level("Working", "good")
IDLE: Final = Level("Idle", "calm")
WAITING: Final = Level("Waiting", "calm")
ATTENTION: Final = Level("Needs attention", "warn")
PAUSED: Final = Level("Paused", "warn")
ELEVATED: Final = Level("Elevated failure rate", "warn")
DEGRADED: Final = Level("Degraded", "bad")
FAILING: Final = Level("Failing", "bad")
STALLED: Final = Level("Stalled", "bad")
NO_WORKERS: Final = Level("No workers running", "bad")
LEVELS: Final = (
    HEALTHY, WORKING, IDLE, WAITING, ATTENTION, PAUSED, ELEVATED, DEGRADED, FAILING, STALLED, NO_WORKERS,
)  # fmt: skip


class Facts(NamedTuple):
    """What the status depends on."""

    span: Span
    """The work of the last minutes."""
    jobs: int = 0
    """All jobs, in any state."""
    pending: int = 0
    running: int = 0
    due_ms: int | None = None
    """How long the oldest due job of a type that is not paused has waited; None if none is due."""
    has_paused: bool = False
    """Whether jobs of paused types are due."""
    has_workers: bool = True
    has_problems: bool = False
    """Whether something else is wrong, such as an open breaker or a worker that fails to start."""
    quiet: str = ""
    """How long ago the last attempt finished."""


class Status(NamedTuple):
    """The level, the details after its words, and a link to more."""

    level: Level
    details: str
    href: str

    @property
    def text(self) -> str:
        """The whole sentence."""
        return f"{self.level.words}: {self.details}"

    @property
    def tone(self) -> str:
        """The tone of the level."""
        return self.level.tone


def status_of(facts: Facts) -> Status:
    """The status of a store; it is never healthy while something else is wrong."""
    status = _work_status(facts)
    return status._replace(level=ATTENTION) if facts.has_problems and status.tone in ("good", "calm") else status


def _work_status(facts: Facts) -> Status:
    """The status, based on what finished in the last minutes or, if nothing did, on what is due."""
    if facts.due_ms is not None and not facts.has_workers and not facts.running:
        return Status(NO_WORKERS, f"{_oldest(facts.due_ms)}", address("/jobs", state="due"))
    if facts.span.work.ended:
        return _finished(facts.span)
    if facts.due_ms is not None and facts.due_ms > LATE_MS:
        details = f"no attempt has finished for {facts.quiet}; {_oldest(facts.due_ms)}"
        return Status(STALLED, details, address("/jobs", state="due"))
    return _quiet(facts)


def level_of(work: Work) -> Level:
    """The level of finished attempts, by the share of failed ones."""
    failed = work.failed + work.retried
    if not work.completed:
        return FAILING
    if failed >= DEGRADED_SHARE * work.ended:
        return DEGRADED
    return ELEVATED if failed >= ELEVATED_SHARE * work.ended else HEALTHY


def pace(per_second: float) -> str:
    """A rate per second or per minute, whichever is readable."""
    return f"{number(per_second)} per second" if per_second >= 1 else f"{number(round(per_second * 60, 1))} per minute"


def _finished(span: Span) -> Status:
    level, last = level_of(span.work), f"in the last {_last(span.seconds)}"
    failed, completed = _failed(span.work), _completed(span)
    if level is HEALTHY:
        rest = f", {failed}" if span.work.failed + span.work.retried else ""
        return Status(level, f"{completed} {last}{rest}", address("/types", sort="rate"))
    return Status(
        level, f"{failed} {last}" + (f" ({completed})" if span.work.completed else ""), address("/types", sort="failed")
    )


def _quiet(facts: Facts) -> Status:
    """The status if nothing has finished and nothing is late."""
    if facts.running:
        details = f"{_jobs(facts.running)} running, none finished in the last minutes"
        return Status(WORKING, details, address("/jobs", state="processing"))
    if facts.due_ms is not None:
        return Status(WAITING, _oldest(facts.due_ms), address("/jobs", state="due"))
    if facts.has_paused:
        return Status(PAUSED, "all due jobs belong to paused types", address("/types", show="paused"))
    if facts.pending:
        return Status(IDLE, "no jobs are due; all pending jobs are scheduled for later", address("/jobs"))
    return Status(IDLE, "no pending jobs" if facts.jobs else "no jobs yet", address("/jobs"))


def _failed(work: Work) -> str:
    failed = work.failed + work.retried
    if not work.completed:
        return "the only attempt failed" if work.ended == 1 else f"all {number(work.ended)} attempts failed"
    if work.ended <= FEW_ATTEMPTS:
        return f"{number(failed)} of {number(work.ended)} attempts failed"
    share = failed / work.ended
    return f"{'less than 1' if share < 0.01 else f'{100 * share:.0f}'} % of attempts failed"


def _completed(span: Span) -> str:
    if span.seconds < RATE_SECONDS:
        return f"{number(span.work.completed)} completed"
    rate = pace(span.work.completed / span.seconds)
    return f"{rate.partition(' ')[0]} completed {rate.partition(' ')[2]}"


def _last(seconds: float) -> str:
    if seconds < FEW_SECONDS:
        return "few seconds"
    return f"{seconds / 60:.0f} minutes" if seconds >= RATE_SECONDS else f"{seconds:.0f} s"


def _oldest(due_ms: int) -> str:
    return f"the oldest due job has waited {duration(due_ms // 1000 * 1000)}"


def _jobs(jobs: int) -> str:
    return f"{number(jobs)} job{'' if jobs == 1 else 's'}"
