"""settle: end attempts. What must be decided is read, decided by the core, and written only if it still fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from everwork.codec.json import policy_of
from everwork.core.decide import Decision, Known, decide
from everwork.core.job import NewJob
from everwork.core.leasing import Demand, Judged, Verdict
from everwork.core.measures import failure
from everwork.core.outcome import Complete, Lapse, Outcome, Release, kind_of
from everwork.core.policy import TypePolicy
from everwork.core.states import State
from everwork.engines.redis.connection import Connection
from everwork.engines.redis.records import LETTERS, Record, demand_words, id_of, job_words, payload_of
from everwork.engines.redis.wire import Word
from everwork.engines.rules import refused
from everwork.exceptions import EngineBusy

ACCEPTED: Final = Judged(Verdict.ACCEPTED, State.PROCESSING)
TRIES_MAX: Final = 50
LAPSED_VALUES: Final = 4
"""Of each lapsed lease: id, state, own policy, number of its type's policy."""
_UNDECIDED: Final[tuple[Word, ...]] = ("", "", 0, 0, "", "", "", "", 0, "")
_RELEASE: Final[tuple[Word, ...]] = ("l", "", 0, 0, kind_of(Release(0, 0)), "", "", "", 0, "")

Decided = dict[int, tuple[Word, ...]]
"""By its place in the batch: verdict, guard, delay, max, kind, error, code, variables, is counted, measured as."""


async def settle(
    link: Connection, outcomes: Sequence[Outcome], demands: Sequence[Demand]
) -> tuple[list[Judged], Any, int]:
    """Judge each outcome by itself; the judgements, what the script leased for the demands, and its now."""
    for _ in range(TRIES_MAX):
        segments, order = _segments(outcomes, await _decided(link, outcomes))
        words = [*segments, *_event_words(outcomes, order), *(["1", *demand_words(demands)] if demands else ["0"])]
        reply = await link.run("settle", words)
        if reply != b"again":
            return _judgements(outcomes, order, reply[0]), reply[1], int(reply[2])
    raise EngineBusy("the retries of a job change faster than its outcome can be written; try again")


async def lapse(link: Connection, lapsed: Sequence[Any], policies: Sequence[bytes]) -> int:
    """Take leases away that ran out, as `sweep.lua` has found them: each is a failed attempt."""
    words: list[Word] = []
    for at in range(0, len(lapsed), LAPSED_VALUES):
        fields = Record(lapsed[at + 1]).fields
        known = Known(int(lapsed[at]), int(fields[1]), int(fields[2]), int(fields[3]))
        policy = _policy(lapsed[at + 2], lapsed[at + 3], policies)
        decision = decide(known, Lapse(known.key, known.attempt, fields[13]), policy)
        words += (lapsed[at], known.attempt, *_words_of(decision, f"{fields[1]} {fields[2]} {fields[3]}"))
    return int(await link.run("lapse", words))


async def _decided(link: Connection, outcomes: Sequence[Outcome]) -> Decided:
    """Each outcome by itself: which of several for one job is the live one, only the script can tell."""
    failures = [(at, o) for at, o in enumerate(outcomes) if not isinstance(o, Complete | Release)]
    if not failures:
        return {}
    keys = list(dict.fromkeys(outcome.key for _, outcome in failures))
    policies, *told = await link.read("decide", *map(id_of, keys))
    read = {key: told[3 * at : 3 * at + 3] for at, key in enumerate(keys)}
    decided: Decided = {}
    for at, outcome in failures:
        stored, own, number = read[outcome.key]
        if stored:
            guard = stored.decode()
            known = Known(outcome.key, *map(int, guard.split()))
            decided[at] = _words_of(decide(known, outcome, _policy(own, number, policies)), guard)
    return decided


def _policy(own: bytes, number: int, policies: Sequence[bytes]) -> TypePolicy:
    """The policy that holds for a job; its type's is said by its number, 0 for none."""
    return policy_of(own.decode() or None, policies[number - 1].decode() if number else None)


def _words_of(decision: Decision, guard: str) -> tuple[Word, ...]:
    verdict = "r" if decision.state is State.PENDING else "f"
    kind, error, code = decision.kind, decision.error, decision.code
    variables = "" if decision.variables is None else payload_of(decision.variables)
    rest = (kind, error, code or "", variables, int(decision.is_counted), failure(decision.sort))
    return verdict, guard, decision.backoff_ms, decision.max_attempts, *rest


def _segments(outcomes: Sequence[Outcome], decided: Decided) -> tuple[list[Word], list[int]]:
    """Outcomes as `settle.lua` reads them, and the place of each in the batch.

    Completions first, the rest behind; where a job is named twice, one after the other in the order of the batch.
    """
    if len({outcome[0] for outcome in outcomes}) == len(outcomes):
        completions = [at for at, outcome in enumerate(outcomes) if type(outcome) is Complete]
        others = [] if len(completions) == len(outcomes) else [
            at for at, outcome in enumerate(outcomes) if type(outcome) is not Complete
        ]  # fmt: skip
        runs = [run for run in (completions, others) if run]
    else:
        runs = _runs(outcomes)
    words: list[Word] = [len(runs)]
    for run in runs:
        is_complete = type(outcomes[run[0]]) is Complete
        words += _complete_words([outcomes[at] for at in run]) if is_complete else _other_words(outcomes, run, decided)
    return words, [at for run in runs for at in run]


def _runs(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """Neighbours of one sort, no job twice in a run."""
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


def _complete_words(completions: Sequence[Any]) -> list[Word]:
    results: list[Word] = []
    for number, outcome in enumerate(completions, 1):
        if outcome[2] is not None:
            results += (number, outcome[2])
    ids = ["%016d" % outcome[0] for outcome in completions]  # noqa: UP031 - per job, and the fastest way
    attempts = [outcome[1] for outcome in completions]
    return ["c", len(ids), *ids, *attempts, len(results) // 2, *results]


def _other_words(outcomes: Sequence[Outcome], run: Sequence[int], decided: Decided) -> list[Word]:
    words: list[Word] = ["o", len(run)]
    for at in run:
        outcome = outcomes[at]
        words += (id_of(outcome.key), outcome.attempt)
        words += _RELEASE if type(outcome) is Release else decided.get(at, _UNDECIDED)
    return words


def _event_words(outcomes: Sequence[Outcome], order: Sequence[int]) -> list[Word]:
    """The jobs that completions carry; each belongs to its completion, counted as the script meets them."""
    events: list[NewJob] = []
    owners: list[int] = []
    number = 0
    for at in order:
        outcome = outcomes[at]
        if type(outcome) is Complete:
            number += 1
            if outcome[3]:
                events += outcome[3]
                owners += [number] * len(outcome[3])
    return ["1", *job_words(events, owners)] if events else ["0"]


def _judgements(outcomes: Sequence[Outcome], order: Sequence[int], told: Sequence[Any]) -> list[Judged]:
    judged = [ACCEPTED] * len(outcomes)
    for at in range(0, len(told), 2):
        place = order[told[at] - 1]
        judged[place] = _refusal(outcomes[place], told[at + 1])
    return judged


def _refusal(outcome: Outcome, told: bytes) -> Judged:
    if not told:
        return Judged(Verdict.NOT_FOUND)
    letter, latest, ended = told.decode().split("\n")
    return refused(outcome, LETTERS[letter], int(latest), ended or None)
