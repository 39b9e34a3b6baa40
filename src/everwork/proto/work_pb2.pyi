"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import ClassVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal import containers
from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor
Reason: _EnumTypeWrapper[int]
REASON_UNSPECIFIED: int
NOT_FOUND: int
WRONG_STATE: int
LEASE_LOST: int
PERMISSION_DENIED: int
INVALID: int
State: _EnumTypeWrapper[int]
STATE_UNSPECIFIED: int
PENDING: int
PROCESSING: int
COMPLETED: int
FAILED: int
CANCELLED: int
Verdict: _EnumTypeWrapper[int]
VERDICT_UNSPECIFIED: int
ACCEPTED: int
REPEATED: int
REFUSED_NOT_FOUND: int
REFUSED_WRONG_STATE: int
REFUSED_LEASE_LOST: int
Order: _EnumTypeWrapper[int]
ORDER_NEWEST: int
ORDER_DUE: int
ORDER_FAILED: int

class FromWorker(Message):
    hello: Hello
    grants: containers.RepeatedCompositeFieldContainer[Grant]
    outcomes: containers.RepeatedCompositeFieldContainer[Outcome]
    heartbeats: containers.RepeatedCompositeFieldContainer[Lease]
    draining: bool
    def __init__(self, *, hello: Hello | None = ..., grants: Iterable[Grant] | None = ..., outcomes: Iterable[Outcome] | None = ..., heartbeats: Iterable[Lease] | None = ..., draining: bool | None = ...) -> None: ...

class Hello(Message):
    worker: str
    lease_ms: int
    resumed: containers.RepeatedCompositeFieldContainer[Lease]
    offline: bool
    def __init__(self, *, worker: str | None = ..., lease_ms: int | None = ..., resumed: Iterable[Lease] | None = ..., offline: bool | None = ...) -> None: ...

class Grant(Message):
    type: str
    credits: int
    group: str
    tenants: containers.RepeatedScalarFieldContainer[str]
    def __init__(self, *, type: str | None = ..., credits: int | None = ..., group: str | None = ..., tenants: Iterable[str] | None = ...) -> None: ...

class Lease(Message):
    key: int
    attempt: int
    def __init__(self, *, key: int | None = ..., attempt: int | None = ...) -> None: ...

class Outcome(Message):
    key: int
    attempt: int
    complete: Complete
    fail: Fail
    retry: Retry
    reject: Reject
    release: Release
    throw: Throw
    def __init__(self, *, key: int | None = ..., attempt: int | None = ..., complete: Complete | None = ..., fail: Fail | None = ..., retry: Retry | None = ..., reject: Reject | None = ..., release: Release | None = ..., throw: Throw | None = ...) -> None: ...

class Complete(Message):
    result: bytes
    events: containers.RepeatedCompositeFieldContainer[NewJob]
    def __init__(self, *, result: bytes | None = ..., events: Iterable[NewJob] | None = ...) -> None: ...

class Fail(Message):
    error: str
    retries: int
    backoff_ms: int
    final: bool
    variables: bytes
    by_policy: bool
    classes: containers.RepeatedScalarFieldContainer[str]
    uncounted: bool
    strict: bool
    traceback: str
    def __init__(self, *, error: str | None = ..., retries: int | None = ..., backoff_ms: int | None = ..., final: bool | None = ..., variables: bytes | None = ..., by_policy: bool | None = ..., classes: Iterable[str] | None = ..., uncounted: bool | None = ..., strict: bool | None = ..., traceback: str | None = ...) -> None: ...

class Retry(Message):
    error: str
    delay_ms: int
    traceback: str
    def __init__(self, *, error: str | None = ..., delay_ms: int | None = ..., traceback: str | None = ...) -> None: ...

class Reject(Message):
    error: str
    traceback: str
    def __init__(self, *, error: str | None = ..., traceback: str | None = ...) -> None: ...

class Release(Message):
    def __init__(self) -> None: ...

class Throw(Message):
    code: str
    error: str
    variables: bytes
    traceback: str
    def __init__(self, *, code: str | None = ..., error: str | None = ..., variables: bytes | None = ..., traceback: str | None = ...) -> None: ...

class ToWorker(Message):
    welcome: Welcome
    jobs: containers.RepeatedCompositeFieldContainer[Job]
    settled: int
    refusals: containers.RepeatedCompositeFieldContainer[Refusal]
    losses: containers.RepeatedCompositeFieldContainer[Loss]
    closing: bool
    def __init__(self, *, welcome: Welcome | None = ..., jobs: Iterable[Job] | None = ..., settled: int | None = ..., refusals: Iterable[Refusal] | None = ..., losses: Iterable[Loss] | None = ..., closing: bool | None = ...) -> None: ...

class Welcome(Message):
    server: str
    heartbeat_ms: int
    lost: containers.RepeatedCompositeFieldContainer[Loss]
    def __init__(self, *, server: str | None = ..., heartbeat_ms: int | None = ..., lost: Iterable[Loss] | None = ...) -> None: ...

class Job(Message):
    key: int
    attempt: int
    type: str
    group: str
    tenant: str
    variables: bytes
    headers: bytes
    attempts: int
    max_attempts: int
    lease_until_ms: int
    run_at_ms: int
    created_at_ms: int
    priority: int
    timeout_ms: int
    correlation_id: str
    limit_key: str
    extra: bytes
    def __init__(self, *, key: int | None = ..., attempt: int | None = ..., type: str | None = ..., group: str | None = ..., tenant: str | None = ..., variables: bytes | None = ..., headers: bytes | None = ..., attempts: int | None = ..., max_attempts: int | None = ..., lease_until_ms: int | None = ..., run_at_ms: int | None = ..., created_at_ms: int | None = ..., priority: int | None = ..., timeout_ms: int | None = ..., correlation_id: str | None = ..., limit_key: str | None = ..., extra: bytes | None = ...) -> None: ...

class Refusal(Message):
    number: int
    lease: Lease
    reason: int
    state: str
    message: str
    def __init__(self, *, number: int | None = ..., lease: Lease | None = ..., reason: int | None = ..., state: str | None = ..., message: str | None = ...) -> None: ...

class Loss(Message):
    lease: Lease
    cancelled: bool
    def __init__(self, *, lease: Lease | None = ..., cancelled: bool | None = ...) -> None: ...

class NewJob(Message):
    type: str
    variables: bytes
    tenant: str
    priority: int
    delay_ms: int
    run_at_ms: int
    max_attempts: int
    dedupe_key: str
    limit_key: str
    correlation_id: str
    expires_at_ms: int
    timeout_ms: int
    headers: bytes
    retry: bytes
    extra: bytes
    def __init__(self, *, type: str | None = ..., variables: bytes | None = ..., tenant: str | None = ..., priority: int | None = ..., delay_ms: int | None = ..., run_at_ms: int | None = ..., max_attempts: int | None = ..., dedupe_key: str | None = ..., limit_key: str | None = ..., correlation_id: str | None = ..., expires_at_ms: int | None = ..., timeout_ms: int | None = ..., headers: bytes | None = ..., retry: bytes | None = ..., extra: bytes | None = ...) -> None: ...

class CreateJobsRequest(Message):
    jobs: containers.RepeatedCompositeFieldContainer[NewJob]
    stamp: Stamp
    def __init__(self, *, jobs: Iterable[NewJob] | None = ..., stamp: Stamp | None = ...) -> None: ...

class Stamp(Message):
    producer: str
    number: int
    def __init__(self, *, producer: str | None = ..., number: int | None = ...) -> None: ...

class CreateJobsResponse(Message):
    jobs: containers.RepeatedCompositeFieldContainer[CreatedJob]
    def __init__(self, *, jobs: Iterable[CreatedJob] | None = ...) -> None: ...

class CreatedJob(Message):
    key: int
    deduplicated: bool
    spool_id: str
    def __init__(self, *, key: int | None = ..., deduplicated: bool | None = ..., spool_id: str | None = ...) -> None: ...

class SpooledRequest(Message):
    spool_id: str
    def __init__(self, *, spool_id: str | None = ...) -> None: ...

class SpooledJob(Message):
    key: int
    deduplicated: bool
    reason: str
    def __init__(self, *, key: int | None = ..., deduplicated: bool | None = ..., reason: str | None = ...) -> None: ...

class ActivateRequest(Message):
    type: str
    worker: str
    limit: int
    lease_ms: int
    group: str
    tenants: containers.RepeatedScalarFieldContainer[str]
    wait_ms: int
    def __init__(self, *, type: str | None = ..., worker: str | None = ..., limit: int | None = ..., lease_ms: int | None = ..., group: str | None = ..., tenants: Iterable[str] | None = ..., wait_ms: int | None = ...) -> None: ...

class ActivateResponse(Message):
    jobs: containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, *, jobs: Iterable[Job] | None = ...) -> None: ...

class SettleRequest(Message):
    outcomes: containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, *, outcomes: Iterable[Outcome] | None = ...) -> None: ...

class SettleResponse(Message):
    judged: containers.RepeatedCompositeFieldContainer[Judged]
    def __init__(self, *, judged: Iterable[Judged] | None = ...) -> None: ...

class Judged(Message):
    verdict: int
    state: int
    def __init__(self, *, verdict: int | None = ..., state: int | None = ...) -> None: ...

class ExtendRequest(Message):
    key: int
    attempt: int
    lease_ms: int
    def __init__(self, *, key: int | None = ..., attempt: int | None = ..., lease_ms: int | None = ...) -> None: ...

class JobRequest(Message):
    key: int
    def __init__(self, *, key: int | None = ...) -> None: ...

class CancelRequest(Message):
    key: int
    reason: str
    def __init__(self, *, key: int | None = ..., reason: str | None = ...) -> None: ...

class Found(Message):
    state: int
    def __init__(self, *, state: int | None = ...) -> None: ...

class RequeueRequest(Message):
    key: int
    variables: bytes
    def __init__(self, *, key: int | None = ..., variables: bytes | None = ...) -> None: ...

class RequeueMatchingRequest(Message):
    filter: JobFilter
    all: bool
    def __init__(self, *, filter: JobFilter | None = ..., all: bool | None = ...) -> None: ...

class BulkChange(Message):
    matched: int
    changed: int
    def __init__(self, *, matched: int | None = ..., changed: int | None = ...) -> None: ...

class SetRetriesRequest(Message):
    key: int
    retries: int
    def __init__(self, *, key: int | None = ..., retries: int | None = ...) -> None: ...

class SetRetriesResponse(Message):
    previous: int
    def __init__(self, *, previous: int | None = ...) -> None: ...

class RescheduleRequest(Message):
    key: int
    run_at_ms: int
    delay_ms: int
    reset: bool
    def __init__(self, *, key: int | None = ..., run_at_ms: int | None = ..., delay_ms: int | None = ..., reset: bool | None = ...) -> None: ...

class SetPriorityRequest(Message):
    key: int
    priority: int
    def __init__(self, *, key: int | None = ..., priority: int | None = ...) -> None: ...

class JobView(Message):
    key: int
    type: str
    state: int
    tenant: str
    group: str
    variables: bytes
    headers: bytes
    result: bytes
    priority: int
    attempt: int
    attempts: int
    max_attempts: int
    retries: int
    created_at_ms: int
    run_at_ms: int
    activated_at_ms: int
    lease_until_ms: int
    finished_at_ms: int
    expires_at_ms: int
    timeout_ms: int
    worker: str
    last_error: str
    error_code: str
    rejected: bool
    dedupe_key: str
    limit_key: str
    correlation_id: str
    copy_of: int
    extra: bytes
    def __init__(self, *, key: int | None = ..., type: str | None = ..., state: int | None = ..., tenant: str | None = ..., group: str | None = ..., variables: bytes | None = ..., headers: bytes | None = ..., result: bytes | None = ..., priority: int | None = ..., attempt: int | None = ..., attempts: int | None = ..., max_attempts: int | None = ..., retries: int | None = ..., created_at_ms: int | None = ..., run_at_ms: int | None = ..., activated_at_ms: int | None = ..., lease_until_ms: int | None = ..., finished_at_ms: int | None = ..., expires_at_ms: int | None = ..., timeout_ms: int | None = ..., worker: str | None = ..., last_error: str | None = ..., error_code: str | None = ..., rejected: bool | None = ..., dedupe_key: str | None = ..., limit_key: str | None = ..., correlation_id: str | None = ..., copy_of: int | None = ..., extra: bytes | None = ...) -> None: ...

class HistoryResponse(Message):
    entries: containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, *, entries: Iterable[HistoryEntry] | None = ...) -> None: ...

class HistoryEntry(Message):
    attempt: int
    kind: str
    at_ms: int
    worker: str
    error: str
    activated_at_ms: int
    retry_at_ms: int
    traceback: str
    def __init__(self, *, attempt: int | None = ..., kind: str | None = ..., at_ms: int | None = ..., worker: str | None = ..., error: str | None = ..., activated_at_ms: int | None = ..., retry_at_ms: int | None = ..., traceback: str | None = ...) -> None: ...

class Explanation(Message):
    key: int
    state: int
    reason: str
    text: str
    until_ms: int
    worker: str
    ahead: int
    def __init__(self, *, key: int | None = ..., state: int | None = ..., reason: str | None = ..., text: str | None = ..., until_ms: int | None = ..., worker: str | None = ..., ahead: int | None = ...) -> None: ...

class JobFilter(Message):
    type: str
    group: str
    states: containers.RepeatedScalarFieldContainer[int]
    tenants: containers.RepeatedScalarFieldContainer[str]
    worker: str
    correlation_id: str
    created_after_ms: int
    created_before_ms: int
    error_text: str
    due: bool
    order: int
    dedupe_key: str
    variables_text: str
    def __init__(self, *, type: str | None = ..., group: str | None = ..., states: Iterable[int] | None = ..., tenants: Iterable[str] | None = ..., worker: str | None = ..., correlation_id: str | None = ..., created_after_ms: int | None = ..., created_before_ms: int | None = ..., error_text: str | None = ..., due: bool | None = ..., order: int | None = ..., dedupe_key: str | None = ..., variables_text: str | None = ...) -> None: ...

class ListRequest(Message):
    filter: JobFilter
    limit: int
    cursor: int
    cursor_ms: int
    def __init__(self, *, filter: JobFilter | None = ..., limit: int | None = ..., cursor: int | None = ..., cursor_ms: int | None = ...) -> None: ...

class Page(Message):
    jobs: containers.RepeatedCompositeFieldContainer[JobView]
    next: int
    next_ms: int
    def __init__(self, *, jobs: Iterable[JobView] | None = ..., next: int | None = ..., next_ms: int | None = ...) -> None: ...

class StatsRequest(Message):
    hours: int
    def __init__(self, *, hours: int | None = ...) -> None: ...

class StatsResponse(Message):
    counts: containers.RepeatedCompositeFieldContainer[Count]
    hours: containers.RepeatedCompositeFieldContainer[WorkerHour]
    generated_at_ms: int
    partial: bool
    def __init__(self, *, counts: Iterable[Count] | None = ..., hours: Iterable[WorkerHour] | None = ..., generated_at_ms: int | None = ..., partial: bool | None = ...) -> None: ...

class Count(Message):
    tenant: str
    type: str
    group: str
    state: int
    jobs: int
    def __init__(self, *, tenant: str | None = ..., type: str | None = ..., group: str | None = ..., state: int | None = ..., jobs: int | None = ...) -> None: ...

class WorkerHour(Message):
    hour: int
    type: str
    worker: str
    completed: int
    failed: int
    retried: int
    execution_ms: int
    wait_ms: int
    def __init__(self, *, hour: int | None = ..., type: str | None = ..., worker: str | None = ..., completed: int | None = ..., failed: int | None = ..., retried: int | None = ..., execution_ms: int | None = ..., wait_ms: int | None = ...) -> None: ...

class ResultRequest(Message):
    key: int
    wait_ms: int
    def __init__(self, *, key: int | None = ..., wait_ms: int | None = ...) -> None: ...

class ResultResponse(Message):
    result: bytes
    def __init__(self, *, result: bytes | None = ...) -> None: ...
