"""Generated from proto/atom/jobs/v1/jobs.proto by tools/generate_proto.py. Do not edit."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import ClassVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal import containers
from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

class CreateJobRequest(Message):
    job_type: str
    retries: int
    variables: MutableMapping[str, str]
    custom_headers: MutableMapping[str, str]
    timeout: int
    process_instance_key: str
    element_id: str
    variables_json: str
    tenant_id: str
    priority: int
    delay_ms: int
    dedupe_key: str
    correlation_id: str
    expires_at: str
    limit_key: str
    bpmn_process_id: str
    process_definition_version: str
    process_definition_key: str
    element_instance_key: str
    def __init__(self, *, job_type: str | None = ..., retries: int | None = ..., variables: Mapping[str, str] | None = ..., custom_headers: Mapping[str, str] | None = ..., timeout: int | None = ..., process_instance_key: str | None = ..., element_id: str | None = ..., variables_json: str | None = ..., tenant_id: str | None = ..., priority: int | None = ..., delay_ms: int | None = ..., dedupe_key: str | None = ..., correlation_id: str | None = ..., expires_at: str | None = ..., limit_key: str | None = ..., bpmn_process_id: str | None = ..., process_definition_version: str | None = ..., process_definition_key: str | None = ..., element_instance_key: str | None = ...) -> None: ...

class CreateJobResponse(Message):
    success: bool
    message: str
    job_key: str
    created_at: str
    deduplicated: bool
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., job_key: str | None = ..., created_at: str | None = ..., deduplicated: bool | None = ...) -> None: ...

class ActivateJobsRequest(Message):
    type: str
    worker: str
    timeout: int
    max_jobs_to_activate: int
    fetch_variable: containers.RepeatedScalarFieldContainer[str]
    tenant_ids: str
    group: str
    def __init__(self, *, type: str | None = ..., worker: str | None = ..., timeout: int | None = ..., max_jobs_to_activate: int | None = ..., fetch_variable: Iterable[str] | None = ..., tenant_ids: str | None = ..., group: str | None = ...) -> None: ...

class ActivateJobsResponse(Message):
    jobs: containers.RepeatedCompositeFieldContainer[ActivatedJob]
    success: bool
    error_message: str
    def __init__(self, *, jobs: Iterable[ActivatedJob] | None = ..., success: bool | None = ..., error_message: str | None = ...) -> None: ...

class ActivatedJob(Message):
    job_key: str
    type: str
    process_instance_key: str
    bpmn_process_id: str
    process_definition_version: str
    process_definition_key: str
    element_id: str
    element_instance_key: str
    custom_headers: MutableMapping[str, str]
    worker: str
    retries: int
    deadline: int
    variables: str
    tenant_id: str
    attempt: int
    def __init__(self, *, job_key: str | None = ..., type: str | None = ..., process_instance_key: str | None = ..., bpmn_process_id: str | None = ..., process_definition_version: str | None = ..., process_definition_key: str | None = ..., element_id: str | None = ..., element_instance_key: str | None = ..., custom_headers: Mapping[str, str] | None = ..., worker: str | None = ..., retries: int | None = ..., deadline: int | None = ..., variables: str | None = ..., tenant_id: str | None = ..., attempt: int | None = ...) -> None: ...

class CompleteJobRequest(Message):
    job_key: str
    variables: MutableMapping[str, str]
    attempt: int
    variables_json: str
    def __init__(self, *, job_key: str | None = ..., variables: Mapping[str, str] | None = ..., attempt: int | None = ..., variables_json: str | None = ...) -> None: ...

class CompleteJobResponse(Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class FailJobRequest(Message):
    job_key: str
    retries: int
    error_message: str
    backoff_timeout: int
    attempt: int
    variables_json: str
    by_policy: bool
    strict: bool
    traceback: str
    def __init__(self, *, job_key: str | None = ..., retries: int | None = ..., error_message: str | None = ..., backoff_timeout: int | None = ..., attempt: int | None = ..., variables_json: str | None = ..., by_policy: bool | None = ..., strict: bool | None = ..., traceback: str | None = ...) -> None: ...

class FailJobResponse(Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class ThrowErrorRequest(Message):
    job_key: str
    error_code: str
    error_message: str
    variables: MutableMapping[str, str]
    attempt: int
    variables_json: str
    traceback: str
    def __init__(self, *, job_key: str | None = ..., error_code: str | None = ..., error_message: str | None = ..., variables: Mapping[str, str] | None = ..., attempt: int | None = ..., variables_json: str | None = ..., traceback: str | None = ...) -> None: ...

class ThrowErrorResponse(Message):
    success: bool
    message: str
    error_caught: bool
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., error_caught: bool | None = ...) -> None: ...

class UpdateJobRetriesRequest(Message):
    job_key: str
    retries: int
    def __init__(self, *, job_key: str | None = ..., retries: int | None = ...) -> None: ...

class UpdateJobRetriesResponse(Message):
    success: bool
    message: str
    previous_retries: int
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., previous_retries: int | None = ...) -> None: ...

class UpdateJobTimeoutRequest(Message):
    job_key: str
    timeout: int
    attempt: int
    def __init__(self, *, job_key: str | None = ..., timeout: int | None = ..., attempt: int | None = ...) -> None: ...

class UpdateJobTimeoutResponse(Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class CancelJobRequest(Message):
    job_key: str
    reason: str
    def __init__(self, *, job_key: str | None = ..., reason: str | None = ...) -> None: ...

class CancelJobResponse(Message):
    success: bool
    message: str
    previous_state: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., previous_state: str | None = ...) -> None: ...

class GetJobRequest(Message):
    job_key: str
    def __init__(self, *, job_key: str | None = ...) -> None: ...

class GetJobResponse(Message):
    success: bool
    message: str
    job: Job
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., job: Job | None = ...) -> None: ...

class ListJobsRequest(Message):
    job_type: str
    state: str
    worker: str
    limit: int
    offset: int
    sort_by: str
    sort_desc: bool
    tenant_ids: str
    def __init__(self, *, job_type: str | None = ..., state: str | None = ..., worker: str | None = ..., limit: int | None = ..., offset: int | None = ..., sort_by: str | None = ..., sort_desc: bool | None = ..., tenant_ids: str | None = ...) -> None: ...

class ListJobsResponse(Message):
    success: bool
    message: str
    jobs: containers.RepeatedCompositeFieldContainer[Job]
    total: int
    has_more: bool
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., jobs: Iterable[Job] | None = ..., total: int | None = ..., has_more: bool | None = ...) -> None: ...

class Job(Message):
    job_key: str
    job_type: str
    state: str
    worker: str
    retries: int
    created_at: str
    activated_at: str
    completed_at: str
    deadline: str
    process_instance_key: str
    element_id: str
    variables: MutableMapping[str, str]
    custom_headers: MutableMapping[str, str]
    error_message: str
    timeout: int
    attempt: int
    variables_json: str
    tenant_id: str
    priority: int
    run_at: str
    dedupe_key: str
    correlation_id: str
    expires_at: str
    limit_key: str
    bpmn_process_id: str
    process_definition_version: str
    process_definition_key: str
    element_instance_key: str
    group: str
    attempts: int
    max_attempts: int
    result_json: str
    error_code: str
    rejected: bool
    copy_of: str
    def __init__(self, *, job_key: str | None = ..., job_type: str | None = ..., state: str | None = ..., worker: str | None = ..., retries: int | None = ..., created_at: str | None = ..., activated_at: str | None = ..., completed_at: str | None = ..., deadline: str | None = ..., process_instance_key: str | None = ..., element_id: str | None = ..., variables: Mapping[str, str] | None = ..., custom_headers: Mapping[str, str] | None = ..., error_message: str | None = ..., timeout: int | None = ..., attempt: int | None = ..., variables_json: str | None = ..., tenant_id: str | None = ..., priority: int | None = ..., run_at: str | None = ..., dedupe_key: str | None = ..., correlation_id: str | None = ..., expires_at: str | None = ..., limit_key: str | None = ..., bpmn_process_id: str | None = ..., process_definition_version: str | None = ..., process_definition_key: str | None = ..., element_instance_key: str | None = ..., group: str | None = ..., attempts: int | None = ..., max_attempts: int | None = ..., result_json: str | None = ..., error_code: str | None = ..., rejected: bool | None = ..., copy_of: str | None = ...) -> None: ...

class GetJobStatsRequest(Message):
    job_type: str
    worker: str
    time_range: str
    def __init__(self, *, job_type: str | None = ..., worker: str | None = ..., time_range: str | None = ...) -> None: ...

class GetJobStatsResponse(Message):
    success: bool
    message: str
    stats: JobStats
    def __init__(self, *, success: bool | None = ..., message: str | None = ..., stats: JobStats | None = ...) -> None: ...

class JobStats(Message):
    total_jobs: int
    by_state: MutableMapping[str, int]
    by_type: MutableMapping[str, int]
    by_worker: MutableMapping[str, int]
    performance: PerformanceStats
    generated_at: str
    def __init__(self, *, total_jobs: int | None = ..., by_state: Mapping[str, int] | None = ..., by_type: Mapping[str, int] | None = ..., by_worker: Mapping[str, int] | None = ..., performance: PerformanceStats | None = ..., generated_at: str | None = ...) -> None: ...

class PerformanceStats(Message):
    avg_execution_time: float
    avg_wait_time: float
    successful_jobs: int
    failed_jobs: int
    success_rate: float
    retry_count: int
    avg_retries_per_job: float
    def __init__(self, *, avg_execution_time: float | None = ..., avg_wait_time: float | None = ..., successful_jobs: int | None = ..., failed_jobs: int | None = ..., success_rate: float | None = ..., retry_count: int | None = ..., avg_retries_per_job: float | None = ...) -> None: ...
