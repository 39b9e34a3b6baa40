"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: D101, D102, D103, E501, I001, N802
# fmt: off

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
    def __init__(self, *, worker: str | None = ..., lease_ms: int | None = ..., resumed: Iterable[Lease] | None = ...) -> None: ...

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
    def __init__(self, *, error: str | None = ..., retries: int | None = ..., backoff_ms: int | None = ..., final: bool | None = ..., variables: bytes | None = ...) -> None: ...

class Retry(Message):
    error: str
    delay_ms: int
    def __init__(self, *, error: str | None = ..., delay_ms: int | None = ...) -> None: ...

class Reject(Message):
    error: str
    def __init__(self, *, error: str | None = ...) -> None: ...

class Release(Message):
    def __init__(self) -> None: ...

class Throw(Message):
    code: str
    error: str
    variables: bytes
    def __init__(self, *, code: str | None = ..., error: str | None = ..., variables: bytes | None = ...) -> None: ...

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
    def __init__(self, *, jobs: Iterable[NewJob] | None = ...) -> None: ...

class CreateJobsResponse(Message):
    jobs: containers.RepeatedCompositeFieldContainer[CreatedJob]
    def __init__(self, *, jobs: Iterable[CreatedJob] | None = ...) -> None: ...

class CreatedJob(Message):
    key: int
    deduplicated: bool
    def __init__(self, *, key: int | None = ..., deduplicated: bool | None = ...) -> None: ...
