"""How jobs are written for the scripts, and how what they answer is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from everwork.core.job import HistoryEntry, Job, LeasedJob, NewJob
from everwork.core.leasing import Activation, Created, Demand
from everwork.core.limits import DEFAULT_GROUP, DEFAULT_TENANT
from everwork.core.retry import remaining_retries
from everwork.core.states import State
from everwork.engines.portions import Claim, claims_of, shared_out
from everwork.engines.redis.wire import Word

SEPARATOR: Final = "\x1f"
LETTERS: Final[Mapping[str, State]] = {
    "p": State.PENDING,
    "r": State.PROCESSING,
    "c": State.COMPLETED,
    "f": State.FAILED,
    "x": State.CANCELLED,
}
LETTER_OF: Final[Mapping[State, str]] = {state: letter for letter, state in LETTERS.items()}
HEAD_CHARS: Final = 30
_NOTHING_RARE: Final = (None,) * 8
_BRACE: Final = ord("{")
_NOTHING: Final = (None,) * 5


def id_of(key: int) -> str:
    """A key as the scripts know it: ids sort as text."""
    return f"{key:016d}"


def lane_of(tenant: str, limit_key: str | None) -> str:
    """The lane of a tenant and limit key, as it is stored."""
    if tenant == DEFAULT_TENANT:
        return "" if limit_key is None else f"{SEPARATOR}{limit_key}"
    return f"{tenant}{SEPARATOR}{limit_key or ''}"


def lane_parts(lane: str) -> tuple[str, str | None]:
    """The tenant and the limit key of a stored lane."""
    if not lane:
        return DEFAULT_TENANT, None
    tenant, _, limit_key = lane.partition(SEPARATOR)
    return tenant or DEFAULT_TENANT, limit_key or None


def queue_of(type: str, group: str) -> str:
    """The name of a type's group, as it is stored."""
    return type if group == DEFAULT_GROUP else f"{type}{SEPARATOR}{group}"


def queue_parts(queue: str) -> tuple[str, str]:
    """The type and the group of a stored queue."""
    type, _, group = queue.partition(SEPARATOR)
    return type, group


def dedupe_field(type: str, tenant: str, dedupe_key: str) -> str:
    """What a dedupe key is known by."""
    return f"{type}{SEPARATOR}{tenant}{SEPARATOR}{dedupe_key}"


def payload_of(variables: str, rare: Sequence[object] = _NOTHING) -> str:
    """What is written once: the variables, and before them, if there is anything rare, that.

    Rare: headers, correlation_id, timeout_ms, extra, dedupe_key.
    """
    if variables.startswith("{") and not any(value is not None for value in rare):
        return variables
    return f"{orjson.dumps(rare).decode()}\n{variables}"


def payload_parts(payload: bytes) -> tuple[str, Sequence[Any]]:
    """The variables and the rare values of a payload."""
    if payload[0] == _BRACE:
        return payload.decode(), _NOTHING
    rare, _, variables = payload.partition(b"\n")
    return variables.decode(), orjson.loads(rare)


def job_words(jobs: Sequence[NewJob], owners: Sequence[int] | None = None) -> list[Word]:
    """Jobs as `parts/intake.lua` reads them; what neighbours share is said once."""
    heads: dict[tuple[Any, ...], int] = {}
    runs: list[Word] = []
    words: list[Word] = []
    before: tuple[Any, ...] | None = None
    shared: tuple[Any, ...]
    for at, job in enumerate(jobs):
        owner = owners[at] if owners else 0
        if job[7:] == _NOTHING_RARE:
            shared = (job[0], job[2:7], None, None, owner)
            words += ("", "", job[1] if job[1].startswith("{") else payload_of(job[1]))
        else:
            shared = (job[0], job[2:7], job.limit_key, job.expires_at_ms, owner)
            words += _rare_words(job)
        if shared == before:
            runs[-2] += 1  # type: ignore[operator]
        else:
            runs += (heads.setdefault(shared[:4], len(heads) + 1), 1, owner)
            before = shared
    told: list[Word] = [len(heads)]
    for head in heads:
        told += _head_words(*head)
    return [*told, len(runs) // 3, *runs, *words]


def _rare_words(job: NewJob) -> tuple[str, str, str]:
    field = "" if job.dedupe_key is None else dedupe_field(job.type, job.tenant, job.dedupe_key)
    rare = (job.headers, job.correlation_id, job.timeout_ms, job.extra, job.dedupe_key)
    return field, job.retry or "", payload_of(job.variables, rare)


def _head_words(type: str, shared: tuple[Any, ...], limit_key: str | None, expires_at_ms: int | None) -> list[Word]:
    tenant, priority, delay_ms, run_at_ms, max_attempts = shared
    rest = [priority, delay_ms, run_at_ms, max_attempts, expires_at_ms]
    return [type, lane_of(tenant, limit_key), *("" if value is None else value for value in rest)]


def created(reply: Any, jobs: int) -> list[Created]:
    """The answer to a create."""
    if isinstance(reply, int):
        return [Created(key) for key in range(reply, reply + jobs)]
    return [Created(int(told[1:]), True) if told[:1] == b"=" else Created(int(told)) for told in reply]


def demand_words(demands: Sequence[Demand]) -> list[Word]:
    """Demands as `parts/claim.lua` reads them."""
    claims = claims_of(demands)
    words: list[Word] = [len(claims)]
    for claim in claims:
        type, group, asked = claim.demands[0].type, claim.demands[0].group, claim.demands[0].tenants
        tenants = ["" if tenant == DEFAULT_TENANT else tenant for tenant in asked]
        words += (type, group, len(tenants), *tenants, len(claim.demands))
        for demand in claim.demands:
            words += (demand.worker, demand.limit, demand.lease_ms)
    return words


def activation(reply: Sequence[Any], demands: Sequence[Demand]) -> Activation:
    """The answer to demands."""
    claims = claims_of(demands)
    now_ms = int(reply[0])
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    for at in range(3, len(reply), 5):
        claim = claims[reply[at] - 1]
        claimed.append((claim, _leased(claim, now_ms, reply[at + 1 : at + 5])))
    jobs, shares = shared_out(claimed, len(demands))
    return Activation(jobs, int(reply[1]) if reply[1] else None, now_ms, shares)


def _leased(claim: Claim, now_ms: int, columns: Sequence[Any]) -> list[LeasedJob]:
    """The jobs of one claim, each with the deadline that its demand wants."""
    first = claim.demands[0]
    type, group, until_ms = first.type, first.group, now_ms + first.lease_ms
    jobs: list[LeasedJob] = []
    instants: dict[bytes, tuple[int, int]] = {}
    infos: dict[bytes, tuple[int, int, int, int, str, str | None]] = {}
    for id, head, told, payload in zip(*columns, strict=True):
        at = instants.get(head)
        if at is None:
            instants[head] = at = int(head[:15]), int(head[15:])
        info = infos.get(told)
        if info is None:
            infos[told] = info = _info(told)
        attempt, attempts, max_attempts, priority, tenant, limit_key = info
        if payload[0] == _BRACE:
            variables, headers, correlation_id, timeout_ms, extra = payload.decode(), None, None, None, None
        else:
            variables, (headers, correlation_id, timeout_ms, extra, _) = payload_parts(payload)
        # A tuple made directly: the named way costs a third of a microsecond more, per job.
        jobs.append(tuple.__new__(LeasedJob, (
            int(id), attempt, attempts, max_attempts, type, group, tenant, until_ms, variables, headers, priority,
            at[0], at[1], timeout_ms, correlation_id, limit_key, extra,
        )))  # fmt: skip
    return claim.dated(jobs, now_ms)


def _info(told: bytes) -> tuple[int, int, int, int, str, str | None]:
    attempt, attempts, max_attempts, priority, lane = told.decode().split("\n")
    return (int(attempt), int(attempts), int(max_attempts), int(priority), *lane_parts(lane))


class Record:
    """A job's state as it is stored, taken apart."""

    __slots__ = ("created_at_ms", "fields", "run_at_ms")

    def __init__(self, stored: bytes) -> None:
        text = stored.decode()
        self.run_at_ms = int(text[:15])
        self.created_at_ms = int(text[15:HEAD_CHARS])
        self.fields = text[HEAD_CHARS:].split("\n", 13)

    @property
    def state(self) -> State:
        """Where the job is in its life."""
        return LETTERS[self.fields[0]]

    @property
    def queue(self) -> tuple[str, str]:
        """Its type and group."""
        return queue_parts(self.fields[6])

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return lane_parts(self.fields[7])[0]

    @property
    def worker(self) -> str | None:
        """Who has or had it."""
        return self.fields[13] or None


def job_of(key: int, stored: Sequence[Any]) -> Job | None:
    """A job from what `parts/whole.lua` answers of it: state, payload, error, result, lease end."""
    if stored[0] is None:
        return None
    record = Record(stored[0])
    variables, (headers, correlation_id, timeout_ms, extra, dedupe_key) = payload_parts(stored[1])
    (letter, attempt, attempts, max_attempts, _, priority, queue, lane, expires, copy, kind, activated, finished, _) = (
        record.fields
    )
    type, group = queue_parts(queue)
    tenant, limit_key = lane_parts(lane)
    code, _, error = stored[2].decode().partition("\0") if stored[2] is not None else ("", "", None)
    state = LETTERS[letter]
    return Job(
        key=key, type=type, group=group, tenant=tenant, limit_key=limit_key, state=state, variables=variables,
        headers=headers, result=None if stored[3] is None else stored[3].decode(), priority=int(priority),
        attempt=int(attempt), attempts=int(attempts), max_attempts=int(max_attempts),
        retries=remaining_retries(state, int(attempts), int(max_attempts)), created_at_ms=record.created_at_ms,
        run_at_ms=record.run_at_ms, activated_at_ms=_instant(activated), finished_at_ms=_instant(finished),
        lease_until_ms=None if stored[4] is None else int(float(stored[4])), expires_at_ms=_instant(expires),
        timeout_ms=timeout_ms, worker=record.worker, last_error=error, error_code=code or None,
        rejected=kind == "reject", dedupe_key=None if copy else dedupe_key, correlation_id=correlation_id,
        copy_of=int(copy) if copy else None, extra=extra,
    )  # fmt: skip


def history_of(record: Record | None, error: bytes | None, entries: Sequence[bytes]) -> list[HistoryEntry]:
    """The written entries, and the end that stands with a completed or cancelled job."""
    events = [entry_of(entry) for entry in entries]
    if record is not None and record.state in (State.COMPLETED, State.CANCELLED):
        fields = record.fields
        reason = error.decode().partition("\0")[2] if error is not None and record.state is State.CANCELLED else None
        kind = fields[10] or "complete"
        attempt, activated, finished = int(fields[1]), _instant(fields[11]), int(fields[12])
        events.append(HistoryEntry(attempt, kind, finished, record.worker, reason, activated))
    return events


def entry_of(stored: bytes) -> HistoryEntry:
    """One written entry."""
    attempt, kind, at_ms, activated, retry_at, worker, error = stored.decode().split("\n", 6)
    has_error = bool(error) or kind not in ("release", "requeue")
    return HistoryEntry(
        int(attempt), kind, int(at_ms), worker or None, error if has_error else None,
        _instant(activated), _instant(retry_at),
    )  # fmt: skip


def entry_text(entry: HistoryEntry) -> str:
    """An entry as it is written."""
    attempt, kind, at_ms, worker, error, activated_at_ms, retry_at_ms = entry
    values = (attempt, kind, at_ms, activated_at_ms, retry_at_ms, worker, error)
    return "\n".join("" if value is None else str(value) for value in values)


def _instant(text: str) -> int | None:
    return int(text) if text else None
