"""Converts jobs to script arguments, and script replies to jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from everwork.core.job import HistoryEntry, LeasedJob, NewJob, StoredJob
from everwork.core.leasing import Activation, Created, Demand, Receiver, Stamp
from everwork.core.limits import DEFAULT_GROUP, DEFAULT_TENANT
from everwork.core.retry import remaining_retries
from everwork.core.states import State
from everwork.engines.portions import Claim, claims_of, distribute
from everwork.engines.redis.wire import Arg
from everwork.engines.rules import DAMAGE, damaged_text, log_damage, readable

SEPARATOR: Final = "\x1f"
STATE_OF: Final[Mapping[str, State]] = {
    "p": State.PENDING,
    "r": State.PROCESSING,
    "c": State.COMPLETED,
    "f": State.FAILED,
    "x": State.CANCELLED,
}
LETTER_OF: Final[Mapping[State, str]] = {state: letter for letter, state in STATE_OF.items()}
HEAD_CHARS: Final = 30
INSTANT_CHARS: Final = 15
WAKEUP_NUMBER: Final = 2
"""The index of the number of the last wake-up in the reply to demands."""
_BRACE: Final = ord("{")
_SHARED: Final = slice(NewJob._fields.index("tenant"), NewJob._fields.index("dedupe_key"))
"""The fields that neighboring new jobs in a batch usually share."""
_RARE: Final = slice(NewJob._fields.index("dedupe_key"), None)
_NO_RARE_FIELDS: Final = NewJob("")[_RARE]
_NO_TOKENS: Final[Mapping[Receiver, str]] = {}


def id_of(key: int) -> str:
    """A key as the scripts know it: 16 digits, so that ids sort as text."""
    return f"{key:016d}"


def lane_of(tenant: str, limit_key: str | None) -> str:
    """The stored name of the lane of a tenant and limit key."""
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
    """The stored name of the queue of a type and group."""
    return type if group == DEFAULT_GROUP else f"{type}{SEPARATOR}{group}"


def queue_parts(queue: str) -> tuple[str, str]:
    """The type and the group of a stored queue."""
    type, _, group = queue.partition(SEPARATOR)
    return type, group


def dedupe_field(type: str, tenant: str, dedupe_key: str) -> str:
    """The field under which a dedupe key is stored."""
    return f"{type}{SEPARATOR}{tenant}{SEPARATOR}{dedupe_key}"


def rare_values(job: NewJob | StoredJob) -> tuple[object, ...]:
    """The rare values of a job's payload."""
    return job.headers, job.correlation_id, job.timeout_ms, job.extra, job.dedupe_key


_NO_RARE_VALUES: Final = rare_values(NewJob(""))


def payload_of(variables: str, rare: tuple[object, ...] = _NO_RARE_VALUES) -> str:
    """The part of a job that is written once: its variables, preceded by a line of rare values if it has any."""
    if variables.startswith("{") and rare == _NO_RARE_VALUES:
        return variables
    return f"{orjson.dumps(rare).decode()}\n{variables}"


def payload_parts(payload: bytes) -> tuple[str, Sequence[Any]]:
    """The variables and the rare values of a payload."""
    if payload[0] == _BRACE:
        return payload.decode(), _NO_RARE_VALUES
    rare, _, variables = payload.partition(b"\n")
    return variables.decode(), orjson.loads(rare)


def create_args(jobs: Sequence[NewJob], stamp: Stamp | None = None) -> list[Arg]:
    """Jobs and their stamp as `create.lua` reads them."""
    if stamp is None:
        if len(jobs) == 1 and jobs[0].is_plain:
            return _plain_args(jobs[0])
        return ["", "", *job_args(jobs)]
    producer, number = stamp
    return [producer, str(number).zfill(16), *job_args(jobs)]


def _plain_args(job: NewJob) -> list[Arg]:
    """A plain job as `parts/create_one.lua` reads it."""
    max_attempts = "" if job.max_attempts is None else job.max_attempts
    payload = payload_of(job.variables, rare_values(job))
    return [job.type, lane_of(job.tenant, job.limit_key), job.priority, max_attempts, payload]


def job_args(jobs: Sequence[NewJob], owners: Sequence[int] | None = None) -> list[Arg]:
    """Jobs as `parts/intake.lua` reads them; the values that neighbors share are sent once."""
    heads: dict[tuple[Any, ...], int] = {}
    runs: list[Arg] = []
    args: list[Arg] = []
    previous: tuple[Any, ...] | None = None
    shared: tuple[Any, ...]
    for at, job in enumerate(jobs):
        owner = owners[at] if owners else 0
        if job[_RARE] == _NO_RARE_FIELDS:
            shared = (job.type, job[_SHARED], None, None, owner)
            variables = job.variables
            args += ("", "", variables if variables.startswith("{") else payload_of(variables))
        else:
            shared = (job.type, job[_SHARED], job.limit_key, job.expires_at_ms, owner)
            args += _rare_args(job)
        if shared == previous:
            runs[-2] += 1  # type: ignore[operator]
        else:
            runs += (heads.setdefault(shared[:4], len(heads) + 1), 1, owner)
            previous = shared
    head_args = [arg for head in heads for arg in _head_args(*head)]
    return [len(heads), *head_args, len(runs) // 3, *runs, *args]


def _rare_args(job: NewJob) -> tuple[str, str, str]:
    field = "" if job.dedupe_key is None else dedupe_field(job.type, job.tenant, job.dedupe_key)
    return field, job.retry or "", payload_of(job.variables, rare_values(job))


def _head_args(type: str, shared: tuple[Any, ...], limit_key: str | None, expires_at_ms: int | None) -> list[Arg]:
    tenant, priority, delay_ms, run_at_ms, max_attempts = shared
    rest = [priority, delay_ms, run_at_ms, max_attempts, expires_at_ms]
    return [type, lane_of(tenant, limit_key), *("" if value is None else value for value in rest)]


def created(reply: Any, jobs: int) -> list[Created]:
    """The reply to a create: the first of consecutive keys, or each id, with '=' before the id of an earlier job."""
    if isinstance(reply, int):
        return [Created(key) for key in range(reply, reply + jobs)]
    return [Created(int(id[1:]), True) if id[:1] == b"=" else Created(int(id)) for id in reply]


def demand_args(demands: Sequence[Demand], tokens: Mapping[Receiver, str] = _NO_TOKENS) -> list[Arg]:
    """Demands as `parts/claim.lua` reads them; `tokens`: of the receivers that can be reached."""
    claims = claims_of(demands)
    args: list[Arg] = [len(claims)]
    for claim in claims:
        first = claim.demands[0]
        tenants = ["" if tenant == DEFAULT_TENANT else tenant for tenant in first.tenants]
        parker, receiver = _parker(claim.demands)
        token = "" if receiver is None else tokens.get(receiver, "")
        args += (first.type, first.group, parker, token, len(tenants), *tenants, len(claim.demands))
        for demand in claim.demands:
            args += (demand.worker, demand.limit, demand.lease_ms)
    return args


def _parker(demands: Sequence[Demand]) -> tuple[int, Receiver | None]:
    """The number of the last demand that can be parked, and its receiver; without one, of the last that withdraws."""
    withdrawing = 0
    for at in range(len(demands), 0, -1):
        demand = demands[at - 1]
        if demand.parks:
            return at, demand.receiver
        if demand.withdraws and not withdrawing:
            withdrawing = at
    return withdrawing, None


def activation(reply: Sequence[Any], demands: Sequence[Demand]) -> Activation:
    """The activation in the reply to demands."""
    claims = claims_of(demands)
    now, next_due, _, *claim_values = reply
    now_ms = int(now)
    claimed: list[tuple[Claim, list[LeasedJob]]] = []
    for at in range(0, len(claim_values), 5):
        number, *columns = claim_values[at : at + 5]
        claim = claims[number - 1]
        claimed.append((claim, _leased(claim, now_ms, columns)))
    jobs, shares = distribute(claimed, len(demands))
    return Activation(jobs, int(next_due) if next_due else None, now_ms, shares)


def _leased(claim: Claim, now_ms: int, columns: Sequence[Any]) -> list[LeasedJob]:
    """The jobs of one claim, each with the deadline that its demand requests; columns: ids, heads, infos, payloads."""
    first = claim.demands[0]
    type, group, until_ms = first.type, first.group, now_ms + first.lease_ms
    jobs: list[LeasedJob] = []
    instants: dict[bytes, tuple[int, int]] = {}
    infos: dict[bytes, tuple[int, int, int, int, str, str | None]] = {}
    for id, head, info, payload in zip(*columns, strict=True):
        known_instants = instants.get(head)
        if known_instants is None:
            instants[head] = known_instants = _parse_head(head)
        run_at_ms, created_at_ms = known_instants
        known_info = infos.get(info)
        if known_info is None:
            infos[info] = known_info = _parse_info(info)
        attempt, attempts, max_attempts, priority, tenant, limit_key = known_info
        try:
            if payload[0] == _BRACE:
                variables, headers, correlation_id, timeout_ms, extra = payload.decode(), None, None, None, None
            else:
                variables, (headers, correlation_id, timeout_ms, extra, _) = payload_parts(payload)
        except DAMAGE:
            variables, (headers, correlation_id, timeout_ms, extra, _) = damaged_text(payload), _NO_RARE_VALUES
        # Created directly: the constructor would take a third of a microsecond longer per job.
        jobs.append(tuple.__new__(LeasedJob, (
            int(id), attempt, attempts, max_attempts, type, group, tenant, until_ms, variables, headers, priority,
            run_at_ms, created_at_ms, timeout_ms, correlation_id, limit_key, extra,
        )))  # fmt: skip
    return claim.with_deadlines(jobs, now_ms)


def handed_job(message: bytes) -> LeasedJob:
    """A job as `parts/create_one.lua` sends it to its worker."""
    id, head, max_attempts, priority, lane, type, until, payload = message.split(b"\n", 7)
    variables, (headers, correlation_id, timeout_ms, extra, _) = payload_parts(payload)
    run_at_ms, created_at_ms = _parse_head(head)
    tenant, limit_key = lane_parts(lane.decode())
    return LeasedJob(
        int(id), 1, 1, int(max_attempts), type.decode(), DEFAULT_GROUP, tenant, int(until), variables, headers,
        int(priority), run_at_ms, created_at_ms, timeout_ms, correlation_id, limit_key, extra,
    )  # fmt: skip


def _parse_head(head: bytes) -> tuple[int, int]:
    """When the job may run and when it was created; zeros if these are damaged, because the job is already leased."""
    try:
        return int(head[:INSTANT_CHARS]), int(head[INSTANT_CHARS:])
    except ValueError:
        return 0, 0


def _parse_info(info: bytes) -> tuple[int, int, int, int, str, str | None]:
    attempt, attempts, max_attempts, priority, lane = info.decode().split("\n")
    return (int(attempt), int(attempts), int(max_attempts), int(priority), *lane_parts(lane))


class Record(NamedTuple):
    """A job's state as `parts/records.lua` stores it; texts are as stored, '' where there is no value."""

    letter: str
    attempt: str
    attempts: str
    max_attempts: str
    created_max_attempts: str
    priority: str
    queue: str
    lane: str
    expires_at: str
    copy_of: str
    kind: str
    activated_at: str
    finished_at: str
    worker_name: str
    instants: str

    @property
    def run_at_ms(self) -> int:
        """The earliest time at which the job may run."""
        return int(self.instants[:INSTANT_CHARS])

    @property
    def created_at_ms(self) -> int:
        """When the job was created."""
        return int(self.instants[INSTANT_CHARS:])

    @property
    def state(self) -> State:
        """The state of the job."""
        return STATE_OF[self.letter]

    @property
    def tenant(self) -> str:
        """The tenant that owns the job."""
        return lane_parts(self.lane)[0]

    @property
    def worker(self) -> str | None:
        """The worker that has or had the job."""
        return self.worker_name or None


_WORKER_AT: Final = Record._fields.index("worker_name")
"""The worker is the last text of a state, because it may contain any character."""


def record_of(stored: bytes) -> Record:
    """Parse a stored state; raises `ValueError` if it is damaged."""
    return tuple.__new__(Record, _values(stored))  # The constructor would take as long as parsing.


def _values(stored: bytes) -> list[str]:
    """The values of a stored state, in the order of `Record`."""
    text = stored.decode()
    values = text[HEAD_CHARS:].split("\n", _WORKER_AT)
    if len(values) != _WORKER_AT + 1:
        raise ValueError("the state of a job is damaged")
    values.append(text[:HEAD_CHARS])
    return values


def found_job(stored: tuple[int, Any, Any, Any, Any, Any]) -> StoredJob | None:
    """A job from its key and its stored values; None if there are none, or its state is damaged."""
    try:
        return job_of(stored[0], stored[1:])
    except DAMAGE as error:
        log_damage(stored, error)
        return None


def job_of(key: int, stored: Sequence[Any]) -> StoredJob | None:
    """A job from what `parts/jobs.lua` returns for it: state, payload, error, result, lease end."""
    state_text, payload, error_text, result, lease_end = stored
    if state_text is None:
        return None
    (
        letter, attempt, attempts, max_attempts, _, priority, queue, lane, expires_at, copy_of, kind,
        activated_at, finished_at, worker, instants,
    ) = _values(state_text)  # fmt: skip
    try:
        variables, (headers, correlation_id, timeout_ms, extra, dedupe_key) = payload_parts(payload)
    except DAMAGE:
        variables, (headers, correlation_id, timeout_ms, extra, dedupe_key) = damaged_text(payload), _NO_RARE_VALUES
    type, group = queue_parts(queue)
    tenant, limit_key = lane_parts(lane)
    code, _, error = error_text.decode().partition("\0") if error_text is not None else ("", "", None)
    state = STATE_OF[letter]
    return StoredJob(
        key=key, type=type, group=group, tenant=tenant, limit_key=limit_key, state=state, variables=variables,
        headers=headers, result=None if result is None else result.decode(), priority=int(priority),
        attempt=int(attempt), attempts=int(attempts), max_attempts=int(max_attempts),
        retries=remaining_retries(state, int(attempts), int(max_attempts)), run_at_ms=int(instants[:INSTANT_CHARS]),
        created_at_ms=int(instants[INSTANT_CHARS:]), activated_at_ms=_instant(activated_at),
        finished_at_ms=_instant(finished_at), expires_at_ms=_instant(expires_at),
        lease_until_ms=None if lease_end is None else int(float(lease_end)), timeout_ms=timeout_ms,
        worker=worker or None, last_error=error, error_code=code or None,
        rejected=kind == "reject", dedupe_key=None if copy_of else dedupe_key, correlation_id=correlation_id,
        copy_of=int(copy_of) if copy_of else None, extra=extra,
    )  # fmt: skip


def history_of(record: Record | None, error: bytes | None, entries: Sequence[bytes]) -> list[HistoryEntry]:
    """The stored entries, and the end of a completed or cancelled job, which is stored only in its state."""
    events = readable(entry_of, entries)
    if record is not None and record.state in (State.COMPLETED, State.CANCELLED):
        reason = error.decode().partition("\0")[2] if error is not None and record.state is State.CANCELLED else None
        kind = record.kind or "complete"
        ended_at_ms, activated_at_ms = int(record.finished_at), _instant(record.activated_at)
        events.append(HistoryEntry(int(record.attempt), kind, ended_at_ms, record.worker, reason, activated_at_ms))
    return events


def entry_of(stored: bytes) -> HistoryEntry:
    """A stored entry of the history."""
    attempt, kind, at_ms, activated_at, retry_at, worker, text = stored.decode().split("\n", 6)
    error, _, more = text.partition("\0")  # See parts/endings.lua.
    has_error = bool(error) or kind not in ("release", "requeue")
    return HistoryEntry(
        int(attempt), kind, int(at_ms), worker or None, error if has_error else None,
        _instant(activated_at), _instant(retry_at), (more or None) if kind != "lapse" else None,
    )  # fmt: skip


def entry_text(entry: HistoryEntry) -> str:
    """An entry of the history as it is stored."""
    attempt, kind, at_ms, worker, error, activated_at_ms, retry_at_ms, traceback = entry
    text = error if traceback is None else f"{error or ''}\0{traceback}"
    values = (attempt, kind, at_ms, activated_at_ms, retry_at_ms, worker, text)
    return "\n".join("" if value is None else str(value) for value in values)


def _instant(text: str) -> int | None:
    return int(text) if text else None


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """The pairs of a flat list, as scripts return hashes."""
    return zip(flat[::2], flat[1::2], strict=True)
