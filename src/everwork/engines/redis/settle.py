"""settle: end attempts. First reads what the core needs to decide; writes only if the job has not changed since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everwork.codec.json import policy_of
from everwork.core.decide import Decision, Known, decide
from everwork.core.job import NewJob
from everwork.core.leasing import Judged, Verdict
from everwork.core.measures import failure
from everwork.core.outcome import Complete, Lapse, Outcome, Release, kind_of
from everwork.core.policy import TypePolicy
from everwork.core.states import State
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.records import STATE_OF, id_of, job_args, pairs, payload_of, record_of
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import refused
from everwork.exceptions import EngineBusy

ACCEPTED: Final = Judged(Verdict.ACCEPTED, State.PROCESSING)
TRIES_MAX: Final = 50
LAPSED_VALUES: Final = 4
"""The number of values per expired lease: id, state, own policy, number of its type's policy."""
_UNDECIDED: Final[tuple[Arg, ...]] = ("", "", 0, 0, "", "", "", "", 0, "", "")
_RELEASE: Final[tuple[Arg, ...]] = ("release", "", 0, 0, kind_of(Release(0, 0)), "", "", "", 0, "", "")

Decided = dict[int, tuple[tuple[Arg, ...], Judged]]
"""Decisions by index: verdict, guard, delay, max, kind, error, code, variables, is counted, measured as, traceback;
and the answer if the script accepts it."""


async def settle(
    connection: Connection, outcomes: Sequence[Outcome], demands: Sequence[Arg]
) -> tuple[list[Judged], Any, int]:
    """Judge each outcome, and serve demands, which come from `demand_args`.

    Returns the judgments, the reply to the demands (None without any), and the script's time.
    """
    for _ in range(TRIES_MAX):
        decided = await _decided(connection, outcomes)
        segments, order = _segments(outcomes, decided)
        args = [*segments, *_event_args(outcomes, order), *(["1", *demands] if demands else ["0"])]
        reply = await connection.run("settle", args)
        if reply != b"again":
            refusals, leased, now = reply
            return _judgements(outcomes, decided, order, refusals), leased, int(now)
    raise EngineBusy("the retries of a job keep changing while its outcome is being written; try again")


async def lapse(connection: Connection, lapsed: Sequence[Any], policies: Sequence[bytes]) -> int:
    """End the leases that `sweep.lua` has found to be expired: each is a failed attempt. Returns how many."""
    args: list[Arg] = []
    for at in range(0, len(lapsed), LAPSED_VALUES):
        id, state, own, number = lapsed[at : at + LAPSED_VALUES]
        record = record_of(state)
        known = Known(int(id), int(record.attempt), int(record.attempts), int(record.max_attempts))
        decision = decide(known, Lapse(known.key, known.attempt, record.worker_name), _policy(own, number, policies))
        guard = f"{record.attempt} {record.attempts} {record.max_attempts}"
        args += (id, known.attempt, *_decision_args(decision, guard))
    return int(await connection.run("lapse", args))


async def _decided(connection: Connection, outcomes: Sequence[Outcome]) -> Decided:
    """The decisions on failures, each made independently: only the script knows which of several attempts is live."""
    failures = [(at, outcome) for at, outcome in enumerate(outcomes) if not isinstance(outcome, Complete | Release)]
    if not failures:
        return {}
    keys = list(dict.fromkeys(outcome.key for _, outcome in failures))
    policies, *values = await connection.read("decide", *map(id_of, keys))
    values_of = {key: values[3 * at : 3 * at + 3] for at, key in enumerate(keys)}
    decided: Decided = {}
    for at, outcome in failures:
        attempts, own, number = values_of[outcome.key]
        if attempts:
            guard = attempts.decode()
            known = Known(outcome.key, *map(int, guard.split()))
            decision = decide(known, outcome, _policy(own, number, policies))
            decided[at] = _decision_args(decision, guard), decision.accepted(known)
    return decided


def _policy(own: bytes, number: int, policies: Sequence[bytes]) -> TypePolicy:
    """The policy of a job: its own, or its type's, given by its number in the list (0 for none)."""
    return policy_of(own.decode() or None, policies[number - 1].decode() if number else None)


def _decision_args(decision: Decision, guard: str) -> tuple[Arg, ...]:
    verdict = "retry" if decision.state is State.PENDING else "fail"
    kind, error, code = decision.kind, decision.error, decision.code
    variables = "" if decision.variables is None else payload_of(decision.variables)
    rest = (kind, error, code or "", variables, int(decision.is_counted), failure(decision.category))
    return verdict, guard, decision.backoff_ms, decision.max_attempts, *rest, decision.traceback or ""


def _segments(outcomes: Sequence[Outcome], decided: Decided) -> tuple[list[Arg], list[int]]:
    """Outcomes as `settle.lua` reads them, and the index of each in the batch.

    Completions first, then the others; if a job appears twice, all in the order of the batch.
    """
    if len({outcome.key for outcome in outcomes}) == len(outcomes):
        completions = [at for at, outcome in enumerate(outcomes) if type(outcome) is Complete]
        others = [] if len(completions) == len(outcomes) else [
            at for at, outcome in enumerate(outcomes) if type(outcome) is not Complete
        ]  # fmt: skip
        runs = [run for run in (completions, others) if run]
    else:
        runs = _runs(outcomes)
    args: list[Arg] = [len(runs)]
    for run in runs:
        is_complete = type(outcomes[run[0]]) is Complete
        args += _complete_args([outcomes[at] for at in run]) if is_complete else _other_args(outcomes, run, decided)
    return args, [at for run in runs for at in run]


def _runs(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """Runs of consecutive outcomes, either all completions or none; no job occurs twice in a run."""
    runs: list[list[int]] = []
    keys: set[int] = set()
    for at, outcome in enumerate(outcomes):
        is_same = bool(runs) and (type(outcomes[runs[-1][0]]) is Complete) == (type(outcome) is Complete)
        if not is_same or outcome.key in keys:
            runs.append([])
            keys = set()
        runs[-1].append(at)
        keys.add(outcome.key)
    return runs


def _complete_args(completions: Sequence[Any]) -> list[Arg]:
    results: list[Arg] = []
    for number, outcome in enumerate(completions, 1):
        if outcome.result is not None:
            results += (number, outcome.result)
    ids = ["%016d" % outcome.key for outcome in completions]  # noqa: UP031 - per job, and the fastest way
    attempts = [outcome.attempt for outcome in completions]
    return ["complete", len(ids), *ids, *attempts, len(results) // 2, *results]


def _other_args(outcomes: Sequence[Outcome], run: Sequence[int], decided: Decided) -> list[Arg]:
    args: list[Arg] = ["other", len(run)]
    for at in run:
        outcome = outcomes[at]
        args += (id_of(outcome.key), outcome.attempt)
        args += _RELEASE if type(outcome) is Release else decided[at][0] if at in decided else _UNDECIDED
    return args


def _event_args(outcomes: Sequence[Outcome], order: Sequence[int]) -> list[Arg]:
    """The jobs that completions create, each with the number of its completion in the order of the script."""
    events: list[NewJob] = []
    owners: list[int] = []
    number = 0
    for at in order:
        outcome = outcomes[at]
        if type(outcome) is Complete:
            number += 1
            if outcome.events:
                events += outcome.events
                owners += [number] * len(outcome.events)
    return ["1", *job_args(events, owners)] if events else ["0"]


def _judgements(
    outcomes: Sequence[Outcome], decided: Decided, order: Sequence[int], refusals: Sequence[Any]
) -> list[Judged]:
    judged = [ACCEPTED] * len(outcomes)
    for at, (_, accepted) in decided.items():
        judged[at] = accepted
    for number, refusal in pairs(refusals):
        at = order[number - 1]
        judged[at] = _refused(outcomes[at], refusal)
    return judged


def _refused(outcome: Outcome, refusal: bytes) -> Judged:
    if not refusal:
        return Judged(Verdict.NOT_FOUND)
    letter, latest_attempt, ended_as = refusal.decode().split("\n")
    return refused(outcome, STATE_OF[letter], int(latest_attempt), ended_as or None)
