"""How attempts end: outcomes and demands are sent as one document, in one statement and one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncpg

from everwork.codec.json import policy_of
from everwork.core.decide import Decision, Known, decide
from everwork.core.job import LeasedJob
from everwork.core.leasing import Activation, Demand, Judged, Verdict
from everwork.core.outcome import Complete, DecidedOutcome, Lapse, Outcome, Release
from everwork.core.states import State
from everwork.engines.portions import claims_of
from everwork.engines.postgres.claims import StartedClaim, Step, claims_document, step_of
from everwork.engines.postgres.create import events_of, packed
from everwork.engines.postgres.opened import OpenStore
from everwork.engines.postgres.read import JobStatus, job_statuses
from everwork.engines.postgres.wake import ANY_TYPE
from everwork.engines.rules import refused
from everwork.exceptions import EngineBusy

ACCEPTED = Judged(Verdict.ACCEPTED, State.PROCESSING)
LOCKED = Judged(Verdict.LEASE_LOST, State.PROCESSING)
RUNNING = Judged(Verdict.WRONG_STATE, State.PROCESSING)
DECIDE_AGAIN_MAX = 100
NOTES_VERSION = 2
"""The version of the notes that this client understands; see functions/activate.sql."""


Policies = tuple[str | None, str | None]
"""A job's own policy and its type's, as they are stored."""


async def settle_distinct(
    store: OpenStore, outcomes: Sequence[Outcome], demands: Sequence[Demand]
) -> tuple[list[Judged], Activation]:
    """Settle outcomes that name different jobs, and serve demands in the same step."""
    document, failures = _document_of(outcomes, store.now_ms())
    decided = await _decide(store, failures, document) if failures else {}
    try:
        step = await run_step(store, document, demands)
    except EngineBusy as error:
        return await _settle_unlocked(store, outcomes, demands, error)
    _notify(store, outcomes, step)
    activation = step.activation
    refused_keys = step.refused | {o.key for o in failures if o.key not in decided}
    judged = {key: accepted for key, accepted in decided.items() if key not in step.refused}
    if refused_keys:
        judged |= await _end_again(store, [o for o in failures if o.key in step.refused])
        refused_keys -= judged.keys()
        judged |= await _explain(store, [o for o in outcomes if o.key in refused_keys], activation.jobs)
        judged |= await _settle_reclaimed(store, [o for o in outcomes if judged.get(o.key) == RUNNING and o.attempt])
    return [judged.get(o.key, ACCEPTED) for o in outcomes], activation


async def run_step(store: OpenStore, document: dict[str, Any], demands: Sequence[Demand]) -> Step:
    """Send one document and read the answer."""
    document["v"] = NOTES_VERSION
    now_ms = store.now_ms()
    if now_ms is not None:
        document["now"] = now_ms
    addresses = await store.listener.addresses(demands)
    loop = asyncio.get_running_loop()
    clock_ms = loop.time() * 1000
    claims = [
        StartedClaim.of(claim, store.marks.of(claim.demands[0]), clock_ms, addresses) for claim in claims_of(demands)
    ]
    if claims:
        document["claims"] = claims_document(claims)
    rows = await store.connections.fetch(store.sql("activate")["step"], packed(document))
    return step_of(rows, claims, len(demands), loop.time() * 1000)


def _document_of(outcomes: Sequence[Outcome], now_ms: int | None) -> tuple[dict[str, Any], list[DecidedOutcome]]:
    """Completions and releases in the form that the step expects, and the failures, which the core decides first."""
    completions = [o for o in outcomes if type(o) is Complete]
    document = completed_document(completions, now_ms)
    if len(completions) == len(outcomes):
        return document, []
    released = {str(o.key): o.attempt for o in outcomes if isinstance(o, Release)}
    if released:
        document["back"] = released
    return document, [o for o in outcomes if not isinstance(o, Complete | Release)]


def completed_document(completions: Sequence[Complete], now_ms: int | None) -> dict[str, Any]:
    """Completions and the jobs that they create, in the form that functions/complete.sql expects."""
    document: dict[str, Any] = {}
    if completions:
        document["done"] = {str(o.key): (o.attempt, o.result) for o in completions}
        events = events_of(completions, now_ms)
        if events:
            document["events"] = events
    return document


async def end_lapsed(store: OpenStore, lapsed: Sequence[tuple[Lapse, Known, Policies]]) -> int:
    """End attempts whose leases expired, as the core decides; return how many were still expired."""
    ended = {
        str(lapse.key): _ended_document(known, decide(known, lapse, policy_of(*policies)))
        for lapse, known, policies in lapsed
    }
    step = await run_step(store, {"ended": ended, "lapsed": True}, [])
    _notify(store, [lapse for lapse, _, _ in lapsed], step)
    return len(lapsed) - len(step.refused)


async def _settle_unlocked(
    store: OpenStore, outcomes: Sequence[Outcome], demands: Sequence[Demand], error: EngineBusy
) -> tuple[list[Judged], Activation]:
    """Settle the jobs that no user's transaction has locked."""
    locked = await _locked(store, outcomes, error)
    judged, activation = await settle_distinct(store, [o for o in outcomes if o.key not in locked], demands)
    answers = iter(judged)
    return [LOCKED if o.key in locked else next(answers) for o in outcomes], activation


async def _locked(store: OpenStore, outcomes: Sequence[Outcome], error: EngineBusy) -> set[int]:
    """The jobs locked by a user's transaction: it completes them, or their leases expire."""
    if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
        raise error
    keys = sorted({outcome.key for outcome in outcomes})
    free = {key for (key,) in await store.connections.fetch(store.sql("settle")["free"], keys)}
    locked = {key for key, _ in await store.connections.read(store.sql("check")["held"], keys)} - free
    if not locked:
        raise error
    return locked


async def _decide(store: OpenStore, failures: Sequence[DecidedOutcome], document: dict[str, Any]) -> dict[int, Judged]:
    """Add the core's decisions on failed attempts to the document.

    Returns the answer for each job if its decision is accepted, by key; a job without the live attempt is left out.
    """
    rows = await store.connections.read(store.sql("settle")["read_leased"], sorted(o.key for o in failures))
    leased = {
        key: (Known(key, attempt, attempts, max_attempts), policy_of(retry, type_policy))
        for key, attempt, attempts, max_attempts, retry, type_policy in rows
    }
    ended: dict[str, Any] = {}
    decided: dict[int, Judged] = {}
    for outcome in failures:
        if outcome.key in leased:
            known, policy = leased[outcome.key]
            if outcome.attempt in (0, known.attempt):
                decision = decide(known, outcome, policy)
                ended[str(outcome.key)] = _ended_document(known, decision)
                decided[outcome.key] = decision.accepted(known)
    if ended:
        document["ended"] = ended
    return decided


def _ended_document(known: Known, decision: Decision) -> dict[str, Any]:
    """An ended attempt as functions/settle.sql reads it. The keys are parameters of a stored function."""
    document: dict[str, Any] = {
        "a": known.attempt,  # These three guard the write.
        "n": known.attempts,
        "m": known.max_attempts,
        "s": int(decision.state),
        "b": decision.backoff_ms,
        "x": decision.max_attempts,
        "i": decision.kind,
        "e": decision.error,
        "c": decision.code,
        "t": decision.category,
    }
    if decision.variables is not None:
        document["v"] = decision.variables
    if decision.traceback is not None:
        document["k"] = decision.traceback
    if decision.is_counted:
        document["f"] = 1
    return document


async def _end_again(store: OpenStore, failures: Sequence[DecidedOutcome]) -> dict[int, Judged]:
    """Decide again for jobs that changed between the read and the write; return the accepted ones, by key."""
    passed: dict[int, Judged] = {}
    left = list(failures)
    for _ in range(DECIDE_AGAIN_MAX):
        document: dict[str, Any] = {}
        decided = await _decide(store, left, document) if left else {}
        left = [outcome for outcome in left if outcome.key in decided]
        if not left:
            return passed
        step = await run_step(store, document, [])
        _notify(store, left, step)
        passed |= {key: accepted for key, accepted in decided.items() if key not in step.refused}
        left = [outcome for outcome in left if outcome.key in step.refused]
    if left:
        raise EngineBusy("the retries of a job keep changing while its outcome is being written; try again")
    return passed


async def _explain(store: OpenStore, outcomes: Sequence[Outcome], leased: Sequence[LeasedJob]) -> dict[int, Judged]:
    """For refused outcomes, read how their attempts ended, and judge the outcomes accordingly."""
    keys = sorted({outcome.key for outcome in outcomes})
    # In this order: an expiry that is undone between the two reads is still seen as an expiry.
    ends = await store.connections.read(store.sql("settle")["past_ends"], keys)
    statuses = await job_statuses(store, keys)
    # Jobs leased by this step were pending when the outcomes were judged.
    held = {job.key for job in leased}
    statuses = [
        status._replace(state=State.PENDING, attempt=status.attempt - 1) if status.key in held else status
        for status in statuses
    ]
    judged = refusals(outcomes, statuses, ends)
    repeated = {key for key, judgement in judged.items() if judgement.verdict is Verdict.REPEATED}
    await _report_repeated(
        store, [status.key for status in statuses if status.is_unreported and status.key in repeated]
    )
    return judged


async def _settle_reclaimed(store: OpenStore, outcomes: Sequence[Outcome]) -> dict[int, Judged]:
    """Retry outcomes refused for an expired lease that was restored before the expiry could be read."""
    judged = (await settle_distinct(store, outcomes, ()))[0] if outcomes else []
    return {outcome.key: one for outcome, one in zip(outcomes, judged, strict=True)}


async def _report_repeated(store: OpenStore, keys: Sequence[int]) -> None:
    """Report completions from users' own transactions to the breakers."""
    if keys:
        document = packed({"keys": keys, "now": store.now_ms()})
        [[is_closed]] = await store.connections.fetch(store.sql("settle")["report_repeated"], document)
        if is_closed:
            store.notifier.notify_work([ANY_TYPE])


def refusals(
    outcomes: Sequence[Outcome], statuses: Sequence[JobStatus], ends: Sequence[tuple[int, int, str]]
) -> dict[int, Judged]:
    """The judgments on refused outcomes, based on the status of each job and how its attempt ended."""
    found = {status.key: status for status in statuses}
    past = {(key, attempt): kind for key, attempt, kind in ends}
    judged: dict[int, Judged] = {}
    for outcome in outcomes:
        status = found.get(outcome.key)
        if status is None:
            judged[outcome.key] = Judged(Verdict.NOT_FOUND)
            continue
        latest_end = status.kind if outcome.attempt == status.attempt else None
        ended = past.get((outcome.key, outcome.attempt), latest_end)
        judged[outcome.key] = refused(outcome, State(status.state), status.attempt, ended)
    return judged


def _notify(store: OpenStore, outcomes: Sequence[Outcome | Lapse], step: Step) -> None:
    """Wake up callers that are waiting for what this step wrote."""
    if len(step.refused) < len(outcomes):
        if step.has_capacity or any(type(outcome) is not Complete or outcome.events for outcome in outcomes):
            store.notifier.notify_work([ANY_TYPE], elsewhere=step.awaited.work)
        store.notifier.notify_finished(elsewhere=step.awaited.results)


def rounds_of(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """The indexes of outcomes, in rounds that name no job twice: the first outcome of each job, then the second."""
    rounds: list[list[int]] = []
    seen: Counter[int] = Counter()
    for index, outcome in enumerate(outcomes):
        number = seen[outcome.key]
        seen[outcome.key] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(index)
    return rounds
