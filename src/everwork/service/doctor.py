"""Examines a store: health, round trips, and problems."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from everwork.core.instants import utc_text
from everwork.core.job import StoredJob
from everwork.core.limits import LIST_LIMIT_MAX
from everwork.core.queries import JobFilter, Stats, TypeInfo
from everwork.core.states import State
from everwork.engines.contract import Clock, Engine
from everwork.engines.rules import REQUESTED_RECENTLY_MS
from everwork.engines.values import Durability, Health
from everwork.exceptions import EngineError
from everwork.service.access.api_key import ApiKey, KeyState
from everwork.service.access.keys import KeyRing
from everwork.service.damaged import is_damaged
from everwork.service.fleet.fleet import Fleet
from everwork.service.monitor.clock_watch import JUMP_KIND, jump_at_ms
from everwork.service.store_copy import COPY_KIND
from everwork.spool.contents import SpoolStatus

ROUND_TRIPS: Final = 5
SLOW_MS: Final = 50.0
CLOCK_OFF_MS: Final = 1_000
SWEPT_WITHIN_MS: Final = 5_000
PAGES_MAX: Final = 5
PROBE_KIND: Final = "doctor"
DUMP_STEP: Final = 200
KEYS_SHOWN: Final = 5
NEARLY_FULL: Final = 0.8
NEARLY_OLD: Final = 0.5
"""An operator must act when a spool exceeds these fractions of its limits."""
EXPIRES_SOON_MS: Final = 14 * 86_400_000

MEANING: Final = {
    Durability.POWER_LOSS: "accepted jobs survive a power failure",
    Durability.PROCESS_CRASH: "accepted jobs survive the crash of any process, but not a power failure",
    Durability.NONE: "accepted jobs can be lost when the engine stops",
}


class Finding(NamedTuple):
    """A finding, with advice. Problems need action; other findings are notes."""

    is_problem: bool
    text: str
    advice: str


class RoundTrips(NamedTuple):
    """Round-trip times in milliseconds; clock_off_ms is the store's clock minus the host's."""

    read_ms: float
    write_ms: float
    clock_off_ms: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of an examination."""

    health: Health
    trips: RoundTrips
    counts: dict[State, int]
    keys: dict[KeyState, int]
    findings: list[Finding]

    @property
    def is_well(self) -> bool:
        """Whether there are no problems."""
        return not any(finding.is_problem for finding in self.findings)


async def examine(
    engine: Engine, host_clock: Clock, spool: SpoolStatus | None = None, *, integrity: bool = False
) -> Diagnosis:
    """Examine an open store and its spool; writes only a short-lived registry entry.

    `integrity`: also check every page and every job, which takes longer the larger the store is.
    """
    health = await engine.health()
    trips = await _round_trips(engine, host_clock)
    stats = await engine.stats(1)
    counts = {state: sum(count.jobs for count in stats.counts if count.state is state) for state in State}
    keys = list(await KeyRing(engine).list())
    findings = [
        *_of_settings(health),
        *_of_trips(trips),
        *await _of_clock(engine),
        *await _of_leases(engine, stats.generated_at_ms),
        *await _of_types(engine, stats),
        *await _of_copies(engine),
        *_of_keys(keys, host_clock()),
        *_of_dead_letters(counts),
        *([] if spool is None else of_spool(spool)),
        *(await _of_integrity(engine) if integrity else []),
    ]
    by_state = {state: sum(key.state(host_clock()) is state for key in keys) for state in KeyState}
    return Diagnosis(health, trips, counts, by_state, sorted(findings, key=lambda finding: not finding.is_problem))


# Measuring -----------------------------------------------------------------------------------------


async def _round_trips(engine: Engine, host_clock: Clock) -> RoundTrips:
    read_ms = await _median_ms(lambda: engine.registered(PROBE_KIND))
    write_ms = await _median_ms(lambda: engine.register(PROBE_KIND, "probe", "{}", ROUND_TRIPS * 1_000))
    await engine.unregister(PROBE_KIND, "probe")
    before = host_clock()
    store_ms = await engine.now()
    return RoundTrips(read_ms, write_ms, store_ms - (before + host_clock()) // 2)


async def _median_ms(call: Callable[[], Awaitable[object]]) -> float:
    taken = []
    for _ in range(ROUND_TRIPS):
        begun = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - begun) * 1_000)
    return median(taken)


# Findings ------------------------------------------------------------------------------------------


def _of_settings(health: Health) -> list[Finding]:
    if health.durability is not Durability.NONE:
        return []
    return [Finding(True, MEANING[health.durability], "let the engine write to disk (Redis: appendonly yes)")]


def _of_trips(trips: RoundTrips) -> list[Finding]:
    findings = []
    if abs(trips.clock_off_ms) >= CLOCK_OFF_MS:
        text = f"the engine's clock differs from this host's by {trips.clock_off_ms / 1_000:+.1f} s"
        findings.append(
            Finding(True, text, "synchronize both with NTP: run_at and expires_at come from the hosts' clocks")
        )
    if max(trips.read_ms, trips.write_ms) >= SLOW_MS:
        text = f"the engine is slow: {trips.read_ms:.0f} ms to read, {trips.write_ms:.0f} ms to write"
        findings.append(Finding(False, text, "run workers closer to the engine, or check its load and disk"))
    return findings


async def _of_integrity(engine: Engine) -> list[Finding]:
    """What the store's own check finds, and jobs whose JSON is damaged."""
    findings = [Finding(not one.is_note, one.text, one.advice) for one in await engine.verify()]
    damaged: list[int] = []
    after = 0
    try:
        while records := await engine.dump(after, DUMP_STEP):
            damaged += [record.job.key for record in records if is_damaged(record.job)]
            after = records[-1].job.key
    except EngineError as error:
        findings.append(Finding(True, f"not every job could be read: {error}", "restore a backup"))
    if damaged:
        shown = ", ".join(map(str, damaged[:KEYS_SHOWN])) + (" …" if len(damaged) > KEYS_SHOWN else "")
        text = f"the JSON of {len(damaged):,} job{'' if len(damaged) == 1 else 's'} is damaged: {shown}"
        advice = "restore a backup, or requeue them with other variables: everwork jobs requeue KEY --variables JSON"
        findings.append(Finding(True, text, advice))
    return findings


async def _of_clock(engine: Engine) -> list[Finding]:
    """Jumps of the engine's clock that running processes have seen."""
    advice = "let a single time service adjust the clock gradually; a jump back delays retries and prolongs leases"
    findings = []
    for entry in await engine.registered(JUMP_KIND):
        at_ms = jump_at_ms(entry.body)
        when = "" if at_ms is None else f" at {utc_text(at_ms)}"
        findings.append(Finding(True, f"the engine's clock jumped by {entry.name} s{when}", advice))
    return findings


async def _of_leases(engine: Engine, now_ms: int) -> list[Finding]:
    running, more = await _some(engine, JobFilter(states=frozenset([State.PROCESSING])))
    lapsed = [job.lease_until_ms for job in running if (job.lease_until_ms or now_ms) < now_ms - SWEPT_WITHIN_MS]
    if not lapsed:
        return []
    oldest = min(instant for instant in lapsed if instant is not None)
    number = f"{len(lapsed):,}{more} expired lease{'' if len(lapsed) == 1 and not more else 's'}"
    text = f"{number} not swept yet, the oldest expired at {utc_text(oldest)}"
    return [Finding(True, text, "start a worker: every process with an open application runs the sweep")]


async def _of_types(engine: Engine, stats: Stats) -> list[Finding]:
    pending: dict[str, int] = {}
    for count in stats.counts:
        if count.state is State.PENDING:
            pending[count.type] = pending.get(count.type, 0) + count.jobs
    findings = []
    due_since: dict[str, int] = {}
    for one in await engine.oldest():
        due_since[one.type] = min(one.run_at_ms, due_since.get(one.type, one.run_at_ms))
    served = await Fleet(engine).served_types() if due_since else frozenset[str]()
    for info in await engine.types():
        jobs = pending.get(info.type, 0)
        if info.paused:
            text = f"type '{info.type}' is paused; {_waiting(jobs)}"
            findings.append(Finding(False, text, "resume it to run them"))
        elif info.type in due_since and not _is_polled(info, stats.generated_at_ms):
            describe = _of_busy if info.type in served else _of_unpolled
            findings.append(describe(info, jobs, due_since[info.type]))
    return findings


def _is_polled(info: TypeInfo, now_ms: int) -> bool:
    return info.last_asked_ms is not None and now_ms - info.last_asked_ms < REQUESTED_RECENTLY_MS


def _of_unpolled(info: TypeInfo, pending: int, due_since_ms: int) -> Finding:
    asked = "yet" if info.last_asked_ms is None else f"since {utc_text(info.last_asked_ms)}"
    text = f"no worker has polled for type '{info.type}' {asked}; {_waiting(pending, due_since_ms)}"
    return Finding(True, text, "start a worker for this type, or cancel the jobs")


def _of_busy(info: TypeInfo, pending: int, due_since_ms: int) -> Finding:
    """The finding for a type whose registered workers have not polled for a while: they are busy with other jobs."""
    text = f"all workers of type '{info.type}' are busy; {_waiting(pending, due_since_ms)}"
    return Finding(False, text, "see everwork workers running; add processes or concurrency")


def _waiting(jobs: int, since_ms: int | None = None) -> str:
    text = f"{jobs:,} job is waiting" if jobs == 1 else f"{jobs:,} jobs are waiting"
    return text if since_ms is None else f"{text}, the oldest since {utc_text(since_ms)}"


async def _of_copies(engine: Engine) -> list[Finding]:
    return [
        Finding(
            True,
            f"a copy from {entry.name} into this store was not finished",
            "run the same command again to resume it",
        )
        for entry in await engine.registered(COPY_KIND)
    ]


def _of_keys(keys: list[ApiKey], now_ms: int) -> list[Finding]:
    """Findings for keys that expire soon; their users would otherwise notice only when calls are refused."""
    advice = "create a new key with everwork keys create, switch its users over, then revoke this one"
    return [
        Finding(False, f"API key {key.id} ('{key.name}') expires at {utc_text(key.expires_at_ms)}", advice)
        for key in keys
        if key.expires_at_ms is not None
        and key.state(now_ms) is KeyState.LIVE
        and key.expires_at_ms <= now_ms + EXPIRES_SOON_MS
    ]


def _of_dead_letters(counts: dict[State, int]) -> list[Finding]:
    dead = counts[State.FAILED]
    advice = "see everwork dead list, and everwork dead list --rejected for rejected jobs"
    text = f"{dead:,} failed job{'s' if dead != 1 else ''} (dead letters and rejected jobs)"
    return [Finding(False, text, advice)] if dead else []


def of_spool(spool: SpoolStatus) -> list[Finding]:
    """Findings for entries that are waiting or cannot be delivered, and for limits that are nearly reached."""
    counts, where = spool.counts, f"the spool {spool.path}"
    see = f"see everwork spool list {spool.path}"
    findings = []
    if counts.aside:
        text = f"{counts.aside:,} entr{'y is' if counts.aside == 1 else 'ies are'} set aside in {where}"
        advice = f"{see}; then everwork spool flush --retry-aside, or everwork spool drop --aside"
        findings.append(Finding(True, text, advice))
    if counts.bytes >= NEARLY_FULL * spool.max_bytes:
        text = f"{where} is {100 * counts.bytes / spool.max_bytes:.0f} % full"
        findings.append(Finding(True, text, "deliver its entries or raise max_bytes; a full spool refuses new jobs"))
    if spool.waiting:
        age_s = (counts.oldest_ms or 0) / 1000
        is_old = age_s >= NEARLY_OLD * spool.max_age
        limit = f", and entries are set aside after {_span(spool.max_age)}" if is_old else ""
        text = f"{spool.waiting:,} entr{'y is' if spool.waiting == 1 else 'ies are'} waiting in {where}"
        text += f", the oldest for {_span(age_s)}{limit}"
        findings.append(Finding(is_old, text, f"{see}; check that a process with this spool is running"))
    if spool.is_away and not spool.waiting:
        advice = "no action needed: spooled jobs are delivered when the engine is available again"
        findings.append(Finding(False, f"new jobs go to {where}", advice))
    return findings


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


async def _some(engine: Engine, filter_: JobFilter) -> tuple[list[StoredJob], str]:
    """The newest matching jobs, up to a limit, and a suffix to add to the count if there are more."""
    jobs: list[StoredJob] = []
    cursor: int | None = None
    for _ in range(PAGES_MAX):
        page = await engine.find(filter_, LIST_LIMIT_MAX, cursor)
        jobs += page.jobs
        cursor = page.next
        if cursor is None:
            return jobs, ""
    return jobs, "+"
