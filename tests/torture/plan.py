"""What the load consists of: the jobs asked for, and what each attempt does. Same input, same plan."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from everwork.core.breaker import CircuitBreaker
from everwork.core.job import LeasedJob, NewJob
from everwork.core.outcome import Complete, Failed, Outcome, Reject, Release, Retry, Throw
from everwork.core.policy import Rate, TypePolicy
from everwork.core.retry import RetryPolicy

WORK: Final = "torture-work"
EVENT: Final = "torture-event"
TRIGGER: Final = "torture-trigger"
LIMITED: Final = "torture-limited"
MANAGED: Final = "torture-managed"
LONE: Final = "torture-lone"
"""Created one by one, mostly when a worker waits for it: creates hand these jobs over."""
TYPES: Final = (WORK, EVENT, TRIGGER, LIMITED, LONE)
"""What the function-like workers serve; managers serve some of it too, and MANAGED alone."""
AUDIT: Final = "audit"
POLICY: Final = RetryPolicy(max_attempts=4, base=0.05, factor=1.5, cap=0.2, jitter=0.5)


class Limits(NamedTuple):
    """What holds for the limited type."""

    max_running: int = 8
    max_running_per_key: int = 3


LIMITS: Final = Limits()
LIMITED_POLICY: Final = TypePolicy(
    retry=POLICY, breaker=CircuitBreaker(failures=4, seconds=1), rate=Rate(200, 1), **LIMITS._asdict()
)

TRIGGER_NAME: Final = "tick"
TRIGGER_EVERY_MS: Final = 250
CATCH_UP_POINTS: Final = 4
ATTEMPTS_OF_MISCHIEF: Final = 6

# Shares in percent; what is left over completes.
_SHARES: Final = (
    ("events", 8),
    ("fail-now", 7),
    ("fail-later", 4),
    ("fail-retries", 2),
    ("fail-final", 2),
    ("retry", 6),
    ("release", 5),
    ("reject", 2),
    ("throw", 2),
    ("hang", 2),
    ("slow", 3),
)


class Request(NamedTuple):
    """A job asked for, under a name that no other job has."""

    name: str
    job: NewJob


class PolledJob(NamedTuple):
    """The parts of a leased job that the load needs, as a client of a server sees them."""

    key: int
    attempt: int
    attempts: int
    max_attempts: int
    lease_until_ms: int
    variables: str


Taken = LeasedJob | PolledJob


MANAGED_SHARE: Final = 0.15
LIMITED_SHARE: Final = 0.1


def request(name: str, rng: random.Random, dedupe_key: str | None = None, expires_at_ms: int | None = None) -> Request:
    """A job of a main type with a random priority, delay and lane."""
    variables = json.dumps({"r": name})
    delay_ms = rng.choice((0, 0, 0, 0, 40, 300))
    tenant = rng.choice(("<default>", "<default>", "tenant-b"))
    kind = WORK if dedupe_key else _kind(rng)
    job = NewJob(
        kind,
        variables,
        tenant="<default>" if dedupe_key else tenant,
        priority=rng.randint(-3, 3),
        delay_ms=delay_ms,
        dedupe_key=dedupe_key,
        limit_key=rng.choice(("a", "b", "c")) if kind == LIMITED else None,
        expires_at_ms=expires_at_ms,
    )
    return Request(name, job)


def lone_request(name: str) -> Request:
    """A plain job that is due now."""
    return Request(name, NewJob(LONE, json.dumps({"r": name})))


def _kind(rng: random.Random) -> str:
    drawn = rng.random()
    if drawn < MANAGED_SHARE:
        return MANAGED
    return LIMITED if drawn < MANAGED_SHARE + LIMITED_SHARE else WORK


def trigger_requests(now_ms: int, epoch_ms: int, names: Iterator[str], *, from_now: bool = False) -> list[Request]:
    """The jobs of the trigger's last time points, deduplicated by them, or, wrongly, by now."""
    latest = (now_ms - epoch_ms) // TRIGGER_EVERY_MS
    wanted = []
    for number in range(max(latest - CATCH_UP_POINTS, 0), latest + 1):
        name, point_ms = next(names), number * TRIGGER_EVERY_MS
        variables = json.dumps({"r": name, "trigger": TRIGGER_NAME, "point": point_ms})
        dedupe_key = f"{TRIGGER_NAME}@{now_ms + number if from_now else point_ms}"
        wanted.append(Request(name, NewJob(TRIGGER, variables, dedupe_key=dedupe_key)))
    return wanted


def name_of(variables: str) -> str:
    """The name under which a job was asked for."""
    return str(json.loads(variables)["r"])


def action(name: str, attempt: int) -> str:
    """What this attempt of the job does."""
    if attempt > ATTEMPTS_OF_MISCHIEF:
        return "complete"
    point = zlib.crc32(f"{name}:{attempt}".encode()) % 100
    for chosen, share in _SHARES:
        if point < share:
            return chosen
        point -= share
    return "complete"


def outcome(job: Taken, chosen: str) -> Outcome:
    """The outcome that this action reports; whatever has none of its own completes."""
    key, attempt = job.key, job.attempt
    outcomes: dict[str, Outcome] = {
        "fail-now": Failed(key, attempt, "failed at once", backoff_ms=0),
        "fail-later": Failed(key, attempt, "failed for a while", backoff_ms=60),
        "fail-retries": Failed(key, attempt, "failed with retries", retries=2, backoff_ms=0),
        "fail-final": Failed(key, attempt, "failed for good", final=True),
        "retry": Retry(key, attempt, "again", delay_ms=0),
        "release": Release(key, attempt),
        "reject": Reject(key, attempt, "makes no sense"),
        "throw": Throw(key, attempt, "TORTURE", "thrown"),
        "events": Complete(key, attempt, token(key, attempt), _events(job)),
    }
    return outcomes.get(chosen) or Complete(key, attempt, token(key, attempt))


def token(key: int, attempt: int, mark: str = "") -> str:
    """The result of a completion: it names the attempt that reported it."""
    return json.dumps(f"{key}@{attempt}{mark}")


def stale_complete(key: int, attempt: int) -> Complete:
    """A completion that must be refused, with a result and an event that must never be seen."""
    event = NewJob(EVENT, json.dumps({"r": f"stale/{key}@{attempt}"}))
    return Complete(key, attempt, token(key, attempt, ":stale"), (event,))


def wants_repeat(name: str, attempt: int) -> bool:
    """Whether the worker reports this outcome a second time."""
    return zlib.crc32(f"repeat:{name}:{attempt}".encode()) % 10 == 0


def wants_stale(name: str, attempt: int) -> bool:
    """Whether the worker also reports, late, for the attempt before."""
    return attempt > 1 and zlib.crc32(f"stale:{name}:{attempt}".encode()) % 3 == 0


def wants_requeue(name: str, attempt: int) -> bool:
    """Whether somebody requeues the job when this attempt has failed for good."""
    return attempt < ATTEMPTS_OF_MISCHIEF and zlib.crc32(f"requeue:{name}".encode()) % 2 == 0


def _events(job: Taken) -> tuple[NewJob, ...]:
    name = f"{name_of(job.variables)}/{job.key}@{job.attempt}"
    return tuple(NewJob(EVENT, json.dumps({"r": f"{name}/{n}"})) for n in range(2))
