"""The generated code is what the `.proto` files say, and those are what other people's programs expect."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from pyzeebe.proto import gateway_pb2 as theirs

from everwork.proto import PROTO_PATH, gateway_pb2, jobs_pb2
from everwork.proto.pool import POOL
from tools import generate_proto

SPECIFIED = {
    "CreateJobRequest": "job_type retries variables custom_headers timeout process_instance_key element_id",
    "CreateJobResponse": "success message job_key created_at",
    "ActivateJobsRequest": "type worker timeout max_jobs_to_activate fetch_variable tenant_ids",
    "ActivateJobsResponse": "jobs success error_message",
    "ActivatedJob": (
        "job_key type process_instance_key bpmn_process_id process_definition_version process_definition_key "
        "element_id element_instance_key custom_headers worker retries deadline variables tenant_id"
    ),
    "CompleteJobRequest": "job_key variables",
    "CompleteJobResponse": "success message",
    "FailJobRequest": "job_key retries error_message backoff_timeout",
    "FailJobResponse": "success message",
    "ThrowErrorRequest": "job_key error_code error_message variables",
    "ThrowErrorResponse": "success message error_caught",
    "UpdateJobRetriesRequest": "job_key retries",
    "UpdateJobRetriesResponse": "success message previous_retries",
    "UpdateJobTimeoutRequest": "job_key timeout",
    "UpdateJobTimeoutResponse": "success message",
    "CancelJobRequest": "job_key reason",
    "CancelJobResponse": "success message previous_state",
    "GetJobRequest": "job_key",
    "GetJobResponse": "success message job",
    "ListJobsRequest": "job_type state worker limit offset sort_by sort_desc",
    "ListJobsResponse": "success message jobs total has_more",
    "Job": (
        "job_key job_type state worker retries created_at activated_at completed_at deadline process_instance_key "
        "element_id variables custom_headers error_message timeout"
    ),
    "GetJobStatsRequest": "job_type worker time_range",
    "GetJobStatsResponse": "success message stats",
    "JobStats": "total_jobs by_state by_type by_worker performance generated_at",
    "PerformanceStats": (
        "avg_execution_time avg_wait_time successful_jobs failed_jobs success_rate retry_count avg_retries_per_job"
    ),
}
SPECIFIED_KINDS = {
    "retries": "int32",
    "max_jobs_to_activate": "int32",
    "previous_retries": "int32",
    "limit": "int32",
    "offset": "int32",
    "total": "int32",
    "total_jobs": "int32",
    "successful_jobs": "int32",
    "failed_jobs": "int32",
    "retry_count": "int32",
    "backoff_timeout": "int64",
    "success": "bool",
    "error_caught": "bool",
    "has_more": "bool",
    "sort_desc": "bool",
    "avg_execution_time": "double",
    "avg_wait_time": "double",
    "success_rate": "double",
    "avg_retries_per_job": "double",
}
FIRST_OF_OURS = 20


def test_the_committed_code_is_what_the_generator_writes(tmp_path: Path) -> None:
    generate_proto.main(tmp_path)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {name: (PROTO_PATH / name).read_text() for name in written}
    assert written == committed, "run python -m tools.generate_proto"


@pytest.mark.parametrize("name", sorted(SPECIFIED))
def test_the_fields_of_the_jobs_api_have_the_specified_numbers(name: str) -> None:
    message = jobs_pb2.DESCRIPTOR.message_types_by_name[name]
    specified = dict(enumerate(SPECIFIED[name].split(), 1))
    assert {field.number: field.name for field in message.fields if field.number < FIRST_OF_OURS} == specified
    for field in message.fields:
        if field.name in SPECIFIED_KINDS:
            assert kind(field) == SPECIFIED_KINDS[field.name], field.full_name


def test_every_message_of_the_jobs_api_is_specified() -> None:
    assert set(jobs_pb2.DESCRIPTOR.message_types_by_name) == set(SPECIFIED)


def test_go_programs_import_the_package_that_they_know() -> None:
    assert jobs_pb2.DESCRIPTOR.GetOptions().go_package == "atom-engine/proto/jobs/jobspb"


@pytest.mark.parametrize("name", sorted(gateway_pb2.DESCRIPTOR.message_types_by_name))
def test_the_gateways_messages_are_field_by_field_those_of_zeebe(name: str) -> None:
    ours, their = (file.DESCRIPTOR.message_types_by_name[name] for file in (gateway_pb2, theirs))
    assert fields(ours) == fields(their)
    assert enums(ours) == enums(their)


def test_the_gateways_calls_are_those_of_zeebe() -> None:
    ours, their = (file.DESCRIPTOR.services_by_name["Gateway"] for file in (gateway_pb2, theirs))
    known = {method.name: shape(method) for method in their.methods}
    assert {method.name: shape(method) for method in ours.methods}.items() <= known.items()
    assert ours.full_name == their.full_name


def test_our_messages_live_in_a_pool_of_their_own() -> None:
    assert jobs_pb2.DESCRIPTOR.pool is POOL
    assert gateway_pb2.DESCRIPTOR.pool is not theirs.DESCRIPTOR.pool


def fields(message: Descriptor) -> dict[int, tuple[str, str, bool]]:
    described = DescriptorProto()
    message.CopyToProto(described)
    is_repeated = FieldDescriptorProto.LABEL_REPEATED.__eq__
    return {field.number: (field.name, kind(field), is_repeated(field.label)) for field in described.field}


def enums(message: Descriptor) -> dict[str, dict[str, int]]:
    return {enum.name: {value.name: value.number for value in enum.values} for enum in message.enum_types}


def shape(method: object) -> tuple[object, ...]:
    asked, answered = method.input_type.name, method.output_type.name  # type: ignore[attr-defined]
    return asked, answered, method.client_streaming, method.server_streaming  # type: ignore[attr-defined]


def kind(field: object) -> str:
    number = field.type  # type: ignore[attr-defined]
    return FieldDescriptorProto.Type.Name(number).removeprefix("TYPE_").lower()
