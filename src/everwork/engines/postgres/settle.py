"""settle and activate: one document, one statement, one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import asyncpg

from everwork.codec.json import policy_of
from everwork.core.decide import Decision, Known, decide
from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand, Judged, Lease, LeaseStatus, Settlement, Verdict
from everwork.core.outcome import Complete, DecidedOutcome, Lapse, Outcome, Release
from everwork.core.states import State
from everwork.engines.portions import Claim, claims_of, shared_out
from everwork.engines.postgres.claims import Mark, Place
from everwork.engines.postgres.create import events_of, packed
from everwork.engines.postgres.opened import OpenStore
from everwork.engines.postgres.wake import ANY_TYPE
from everwork.engines.rules import refused
from everwork.exceptions import EngineBusy

ACCEPTED = Judged(Verdict.ACCEPTED, State.PROCESSING)
LOCKED = Judged(Verdict.LEASE_LOST, State.PROCESSING)
DECIDE_AGAIN_MAX = 100
NOTES = 2
"""The version of the notes that this client understands, see functions/activate.sql."""


Policies = tuple[str | None, str | None]
"""A job's own policy and its type's, as they are stored."""


class Awaited(NamedTuple):
    """Whether anybody waits for results, and for work: the others need not be told."""

    results: bool
    work: bool


class Step(NamedTuple):
    """What one statement did."""

    refused: set[int]
    activation: Activation
    awaited: Awaited
    has_room: bool
    """Whether others may find work that was held back."""


class Begun(NamedTuple):
    """A claim, what is remembered of its queue, and where it begins."""

    claim: Claim
    mark: Mark
    place: Place | None

    @classmethod
    def of(cls, claim: Claim, mark: Mark, clock_ms: float) -> Begun:
        """Choose where to begin."""
        return cls(claim, mark, mark.begin(clock_ms))


async def settle(parts: OpenStore, outcomes: Sequence[Outcome], demands: Sequence[Demand]) -> Settlement:
    """Judge each outcome by itself; two outcomes for one job are judged one after the other."""
    if len({outcome[0] for outcome in outcomes}) == len(outcomes):
        return Settlement(*await _settle(parts, outcomes, demands))
    judged: dict[int, Judged] = {}
    for places in rounds_of(outcomes):
        answers, _ = await _settle(parts, [outcomes[place] for place in places], ())
        judged.update(zip(places, answers, strict=True))
    return Settlement([judged[place] for place in range(len(outcomes))], await activate(parts, demands))


async def activate(parts: OpenStore, demands: Sequence[Demand]) -> Activation:
    """Lease jobs."""
    return (await run_step(parts, {}, demands)).activation


async def _settle(
    parts: OpenStore, outcomes: Sequence[Outcome], demands: Sequence[Demand]
) -> tuple[list[Judged], Activation]:
    """Settle outcomes of different jobs."""
    document: dict[str, Any] = {}
    completions = [o for o in outcomes if type(o) is Complete]
    if completions:
        document["done"] = {str(o[0]): o[1:3] for o in completions}
        events = events_of(completions, parts.now_ms())
        if events:
            document["events"] = events
    missing: set[int] = set()
    if len(completions) < len(outcomes):
        back = {str(o.key): o.attempt for o in outcomes if isinstance(o, Release)}
        if back:
            document["back"] = back
        failures: list[DecidedOutcome] = [o for o in outcomes if not isinstance(o, Complete | Release)]
        missing = await _decide(parts, failures, document)
    try:
        step = await run_step(parts, document, demands)
    except EngineBusy as error:
        locked = await _locked(parts, outcomes, error)
        free = [outcome for outcome in outcomes if outcome.key not in locked]
        judged, activation = await _settle(parts, free, demands)
        answers = iter(judged)
        return [LOCKED if outcome.key in locked else next(answers) for outcome in outcomes], activation
    _tell(parts, outcomes, step)
    activation = step.activation
    refused_keys = step.refused | missing
    if not refused_keys:
        return [ACCEPTED] * len(outcomes), activation
    again = [o for o in outcomes if o.key in step.refused and not isinstance(o, Complete | Release)]
    refused_keys -= await _end_again(parts, again)
    told = await _explain(parts, [o for o in outcomes if o.key in refused_keys], activation.jobs)
    return [told.get(o.key, ACCEPTED) for o in outcomes], activation


async def _locked(parts: OpenStore, outcomes: Sequence[Outcome], error: EngineBusy) -> set[int]:
    """The jobs that a transaction of the user's keeps locked: it will complete them, or their leases lapse."""
    if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
        raise error
    keys = sorted({outcome.key for outcome in outcomes})
    free = {key for (key,) in await parts.connections.rows(parts.sql("settle")["free"], keys)}
    locked = {key for key, *_ in await parts.connections.look(parts.sql("check")["held"], keys)} - free
    if not locked:
        raise error
    return locked


async def end_lapsed(parts: OpenStore, lapsed: Sequence[tuple[Lapse, Known, Policies]]) -> int:
    """Take leases away that ran out, as decided by the core; how many still had run out."""
    ended = {
        str(lapse.key): _ended(known, decide(known, lapse, policy_of(*policies))) for lapse, known, policies in lapsed
    }
    step = await run_step(parts, {"ended": ended, "lapsed": True}, [])
    _tell(parts, [lapse for lapse, _, _ in lapsed], step)
    return len(lapsed) - len(step.refused)


async def run_step(parts: OpenStore, document: dict[str, Any], demands: Sequence[Demand]) -> Step:
    """Send one document and read the answer."""
    document["v"] = NOTES
    now_ms = parts.now_ms()
    if now_ms is not None:
        document["now"] = now_ms
    loop = asyncio.get_running_loop()
    now = loop.time() * 1000
    begun = [Begun.of(claim, parts.mark_of(claim.demands[0]), now) for claim in claims_of(demands)]
    if begun:
        claims = [_claim(number, *one) for number, one in enumerate(begun)]
        # Two steps that pass the same gates (see functions/limits.sql) do so in the same order.
        document["claims"] = sorted(claims, key=itemgetter("t", "g"))
    rows = await parts.connections.rows(parts.sql("activate")["step"], packed(document))
    return _read(rows, begun, len(demands), loop.time() * 1000)


def _claim(number: int, claim: Claim, mark: Mark, place: Place | None) -> dict[str, Any]:
    whole, demands = claim.whole, claim.demands
    asked: dict[str, Any] = {
        "o": number, "t": whole.type, "g": whole.group, "n": whole.limit, "w": [demand.worker for demand in demands],
        "l": [demand.lease_ms for demand in demands], "c": mark.lane,
    }  # fmt: skip
    if len(demands) > 1:
        asked["d"] = [demand.limit for demand in demands]
    if whole.tenants:
        asked["i"] = whole.tenants
    if place is not None:
        asked["m"] = place
    return asked


def _read(rows: list[Any], begun: Sequence[Begun], demands: int, clock_ms: float) -> Step:
    """Part leased jobs and notes; see functions/activate.sql for what the notes say."""
    last = rows.pop()
    now_ms: int = last[0]
    refused_keys: set[int] = set()
    has_room = False
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    due: list[int] = []
    start = 0
    for place in [place for place, row in enumerate(rows) if row[1] is None]:
        note = rows[place]
        if note[4] == "refused":
            refused_keys.add(note[0])
        elif note[4] == "room":
            has_room = True
        elif note[4] == "due":
            due += [] if note[7] is None else [note[7]]
        else:
            part = [LeasedJob._make(row) for row in rows[start:place]]
            claimed.append((begun[note[3]].claim, part))
            due += _learn(begun[note[3]], note, part, now_ms, clock_ms)
        start = place + 1
    jobs, shares = shared_out(claimed, demands)
    activation = Activation(jobs, min(due, default=None), now_ms, shares)
    return Step(refused_keys, activation, Awaited(bool(last[2]), bool(last[3])), has_room)


def _learn(begun: Begun, note: Any, jobs: list[LeasedJob], now_ms: int, clock_ms: float) -> list[int]:
    """Remember where a claim ended; the instants at which asking again may find more."""
    due = [] if note[7] is None else [note[7]]
    if note[0]:
        begun.mark.lane = note[0]
        return due
    end = (-jobs[-1].priority, jobs[-1].run_at_ms, jobs[-1].key) if jobs else None
    begun.mark.claimed(begun.place, end, note[12] - len(jobs), clock_ms)
    front_in_ms = begun.mark.front_in_ms(clock_ms)
    if front_in_ms is not None and len(jobs) < begun.claim.whole.limit:
        due.append(now_ms + front_in_ms)
    return due


async def _decide(parts: OpenStore, failures: Sequence[DecidedOutcome], document: dict[str, Any]) -> set[int]:
    """Let the core decide what becomes of failed attempts; the keys of those that have no live attempt."""
    if not failures:
        return set()
    rows = await parts.connections.look(parts.sql("settle")["read_leased"], sorted(o.key for o in failures))
    known = {row[0]: (Known(*row[:4]), policy_of(*row[4:])) for row in rows}
    ended: dict[str, Any] = {}
    for outcome in failures:
        found = known.get(outcome.key)
        if found is not None and outcome.attempt in (0, found[0].attempt):
            ended[str(outcome.key)] = _ended(found[0], decide(found[0], outcome, found[1]))
    if ended:
        document["ended"] = ended
    return {outcome.key for outcome in failures if str(outcome.key) not in ended}


def _ended(known: Known, decision: Decision) -> dict[str, Any]:
    ended: dict[str, Any] = {
        "a": known.attempt, "n": known.attempts, "m": known.max_attempts, "s": int(decision.state),
        "b": decision.backoff_ms, "x": decision.max_attempts, "i": decision.kind, "e": decision.error,
        "c": decision.code, "t": decision.sort,
    }  # fmt: skip
    if decision.variables is not None:
        ended["v"] = decision.variables
    if decision.is_counted:
        ended["f"] = 1
    return ended


async def _end_again(parts: OpenStore, failures: Sequence[DecidedOutcome]) -> set[int]:
    """Decide again what somebody changed between the look and the write; the keys that passed now."""
    passed: set[int] = set()
    left = list(failures)
    for _ in range(DECIDE_AGAIN_MAX):
        document: dict[str, Any] = {}
        missing = await _decide(parts, left, document)
        left = [outcome for outcome in left if outcome.key not in missing]
        if not left:
            return passed
        step = await run_step(parts, document, [])
        _tell(parts, left, step)
        passed |= {outcome.key for outcome in left} - step.refused
        left = [outcome for outcome in left if outcome.key in step.refused]
    if left:
        raise EngineBusy("the retries of a job change faster than its outcome can be written; try again")
    return passed


async def _explain(parts: OpenStore, outcomes: Sequence[Outcome], leased: Sequence[LeasedJob]) -> dict[int, Judged]:
    """Find out how the attempts ended that these outcomes name; what follows is the same on every engine."""
    keys = sorted({outcome.key for outcome in outcomes})
    rows = [tuple(row) for row in await parts.connections.look(parts.sql("get")["where"], keys)]
    ends = await parts.connections.look(parts.sql("settle")["past_ends"], keys)
    # What this very step has leased was pending when the outcomes were judged.
    held = {job.key for job in leased}
    rows = [(row[0], State.PENDING, row[2] - 1, *row[3:]) if row[0] in held else row for row in rows]
    judged = refusals(outcomes, rows, ends)
    await _tell_repeated(parts, [row[0] for row in rows if row[6] and judged[row[0]].verdict is Verdict.REPEATED])
    return judged


async def _tell_repeated(parts: OpenStore, keys: Sequence[int]) -> None:
    """Let breakers hear of what was completed in transactions of the users' own."""
    if keys:
        document = packed({"keys": keys, "now": parts.now_ms()})
        [[is_closed]] = await parts.connections.rows(parts.sql("settle")["tell_repeated"], document)
        if is_closed:
            parts.notifier.tell_work([ANY_TYPE])


def refusals(outcomes: Sequence[Outcome], rows: Sequence[Any], ends: Sequence[Any]) -> dict[int, Judged]:
    """The judgements on refused outcomes, from the places of their jobs and the ends of their attempts."""
    found = {row[0]: row for row in rows}
    past = {(key, attempt): kind for key, attempt, kind in ends}
    judged: dict[int, Judged] = {}
    for outcome in outcomes:
        row = found.get(outcome.key)
        if row is None:
            judged[outcome.key] = Judged(Verdict.NOT_FOUND)
            continue
        _, state, latest, _, _, kind, _ = row
        ended = past.get((outcome.key, outcome.attempt), kind if outcome.attempt == latest else None)
        judged[outcome.key] = refused(outcome, State(state), latest, ended)
    return judged


def _tell(parts: OpenStore, outcomes: Sequence[Outcome | Lapse], step: Step) -> None:
    """Wake whoever may be concerned by what this step wrote."""
    if len(step.refused) < len(outcomes):
        if step.has_room or any(type(outcome) is not Complete or outcome.events for outcome in outcomes):
            parts.notifier.tell_work([ANY_TYPE], everybody=step.awaited.work)
        parts.notifier.tell_done(everybody=step.awaited.results)


def rounds_of(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """The places of outcomes, parted so that no round names a job twice: the first of each job, then the second."""
    rounds: list[list[int]] = []
    seen: Counter[int] = Counter()
    for place, outcome in enumerate(outcomes):
        number = seen[outcome.key]
        seen[outcome.key] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds


async def extend(parts: OpenStore, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
    """Let live leases end `lease_ms` from now."""
    sql = parts.sql("extend")
    ordered = sorted(set(leases))
    held = await _extended(parts, sql["extend"], ordered, lease_ms)
    late = [lease for lease in ordered if lease not in held]
    if late:
        held |= await _extended(parts, sql["extend_locked"], late, lease_ms)
    return await _statuses(parts, leases, held)


async def _extended(parts: OpenStore, sql: str, leases: Sequence[Lease], lease_ms: int) -> set[tuple[int, int]]:
    keys, attempts = [lease.key for lease in leases], [lease.attempt for lease in leases]
    return {tuple(row) for row in await parts.connections.rows(sql, keys, attempts, lease_ms, parts.now_ms())}


async def check(parts: OpenStore, leases: Sequence[Lease]) -> list[LeaseStatus]:
    """Look which leases hold, and change nothing."""
    rows = await parts.connections.look(parts.sql("check")["held"], sorted({lease.key for lease in leases}))
    return await _statuses(parts, leases, {tuple(row) for row in rows})


async def _statuses(parts: OpenStore, leases: Sequence[Lease], held: set[tuple[int, int]]) -> list[LeaseStatus]:
    gone = sorted({lease.key for lease in leases if lease not in held})
    cancelled: set[tuple[int, int]] = set()
    if gone:
        rows = await parts.connections.look(parts.sql("check")["cancelled"], gone)
        cancelled = {tuple(row) for row in rows}
    return [
        LeaseStatus.HELD if lease in held else LeaseStatus.CANCELLED if lease in cancelled else LeaseStatus.LOST
        for lease in leases
    ]
