"""Bad input: the right status, and a message that names the field and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from grpc import StatusCode

from everwork.core.limits import MESSAGE_BYTES_MAX
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from tests.server.grpc.running import SECONDS, TYPE, RunningServer, refused

Mistake = tuple[str, Mapping[str, Any], str]
WORK = {"type": TYPE, "worker": "w"}
KEY_63 = 2**63 - 1
DEEP = '{"a":' * 65 + "1" + "}" * 65
DEEPEST = '{"a":' + "[" * 1_010 + "1234567890123456789" + "]" * 1_010 + "}"
"""As deep as the parser goes, with a number that is looked at twice."""
MOMENT = "expires_at: must be a time from 1970 to 9999 in RFC 3339 format, such as 2030-01-31T12:00:00Z, not '"
TOO_DEEP = "must be nested at most 64 levels deep"


JOBS_MISTAKES: Final[Sequence[Mistake]] = (
    ("CreateJob", {}, "job_type: must have 1 to 255 characters"),
    ("CreateJob", {"job_type": "x" * 256}, "job_type: must have 1 to 255 characters, not 256"),
    ("CreateJob", {"job_type": "a\0b"}, "job_type: must consist of printable characters"),
    ("CreateJob", {"job_type": TYPE, "retries": -1}, "retries: must be a whole number from 1 to 100, not -1"),
    ("CreateJob", {"job_type": TYPE, "retries": 101}, "retries: must be"),
    ("CreateJob", {"job_type": TYPE, "timeout": -1}, "timeout: must be a whole number from 1 to 86400000"),
    ("CreateJob", {"job_type": TYPE, "timeout": KEY_63}, "timeout: must be"),
    ("CreateJob", {"job_type": TYPE, "priority": 512}, "priority: must be a whole number from -512 to 511"),
    ("CreateJob", {"job_type": TYPE, "delay_ms": -(2**63)}, "delay_ms: must be"),
    ("CreateJob", {"job_type": TYPE, "delay_ms": KEY_63}, "delay_ms: must be"),
    ("CreateJob", {"job_type": TYPE, "expires_at": "tomorrow"}, MOMENT),
    ("CreateJob", {"job_type": TYPE, "expires_at": "2030-01-01T00:00:00"}, MOMENT),
    ("CreateJob", {"job_type": TYPE, "expires_at": "20300131T12Z"}, MOMENT),
    ("CreateJob", {"job_type": TYPE, "expires_at": "2030-01-31T12:00:00+23:59:59.5"}, MOMENT),
    ("CreateJob", {"job_type": TYPE, "expires_at": "2030-02-31T12:00:00Z"}, MOMENT),
    ("CreateJob", {"job_type": TYPE, "expires_at": "1969-12-31T23:59:59Z"}, MOMENT),
    ("CreateJob", {"job_type": TYPE, "expires_at": "0001-01-01T00:00:00Z"}, "expires_at: must be"),
    ("CreateJob", {"job_type": TYPE, "variables_json": "[1]"}, "variables_json: must be a JSON object"),
    ("CreateJob", {"job_type": TYPE, "variables_json": "{"}, "variables_json: must be a JSON object"),
    ("CreateJob", {"job_type": TYPE, "variables_json": '{"a":1e999}'}, "variables"),
    ("CreateJob", {"job_type": TYPE, "variables_json": DEEP}, "variables_json: must be nested at most 64 levels deep"),
    ("CreateJob", {"job_type": TYPE, "variables_json": DEEPEST}, f"variables_json: {TOO_DEEP}"),
    ("CreateJob", {"job_type": TYPE, "variables_json": DEEPEST[5:-1]}, f"variables_json: {TOO_DEEP}"),
    ("CompleteJob", {"job_key": "1", "variables_json": DEEPEST}, f"variables_json: {TOO_DEEP}"),
    ("FailJob", {"job_key": "1", "variables_json": DEEPEST}, f"variables_json: {TOO_DEEP}"),
    (
        "CreateJob",
        {"job_type": TYPE, "variables_json": "{}", "variables": {"a": "1"}},
        "variables_json: cannot be combined with variables",
    ),
    ("CreateJob", {"job_type": TYPE, "variables": {"a": "x" * 1_048_577}}, "variables: must be at most 1,048,576"),
    ("CreateJob", {"job_type": TYPE, "custom_headers": {"a": "x" * 65_537}}, "custom_headers: must be at most"),
    ("CreateJob", {"job_type": TYPE, "element_id": "x" * 256}, "element_id: must have at most 255"),
    ("CreateJob", {"job_type": TYPE, "tenant_id": "x" * 256}, "tenant_id: must have"),
    ("CreateJob", {"job_type": TYPE, "dedupe_key": "\n"}, "dedupe_key: must consist of printable characters"),
    ("ActivateJobs", {"worker": "w"}, "type: must have 1 to 255 characters"),
    ("ActivateJobs", {"type": TYPE}, "worker: must have 1 to 255 characters"),
    ("ActivateJobs", {**WORK, "timeout": -1}, "timeout: must be a whole number from 1 to 86400000"),
    ("ActivateJobs", {**WORK, "timeout": 2**31 - 1}, "timeout: must be"),
    ("ActivateJobs", {**WORK, "max_jobs_to_activate": -1}, "max_jobs_to_activate: must be a whole number from 1"),
    ("ActivateJobs", {**WORK, "max_jobs_to_activate": 101}, "max_jobs_to_activate: must be"),
    ("ActivateJobs", {**WORK, "tenant_ids": "a,b\0"}, "tenant_ids: must consist of printable"),
    ("ActivateJobs", {**WORK, "tenant_ids": ",".join(map(str, range(1_001)))}, "tenant_ids: must name at most"),
    ("ActivateJobs", {**WORK, "group": "g" * 256}, "group: must have"),
    (
        "ActivateJobs",
        {**WORK, "fetch_variable": ["a"] * 1_001},
        "fetch_variable: must name at most 1,000 variables, not 1,001",
    ),
    ("CompleteJob", {}, "job_key: is required"),
    ("CompleteJob", {"job_key": "1", "variables_json": "nope"}, "variables_json: must be JSON"),
    (
        "CompleteJob",
        {"job_key": "1", "variables": {"a": "1"}, "variables_json": "1"},
        "variables_json: cannot be combined with variables",
    ),
    ("FailJob", {"job_key": "1", "retries": -1}, "retries: must be a whole number from 0 to 100"),
    ("FailJob", {"job_key": "1", "retries": 101}, "retries: must be"),
    ("FailJob", {"job_key": "1", "backoff_timeout": -1}, "backoff_timeout: must be a whole number from 0 to"),
    ("FailJob", {"job_key": "1", "backoff_timeout": KEY_63}, "backoff_timeout: must be"),
    ("FailJob", {"job_key": "1", "variables_json": "[]"}, "variables_json: must be a JSON object"),
    ("ThrowError", {"job_key": "1"}, "error_code: must have 1 to 255 characters"),
    ("UpdateJobRetries", {"job_key": "1", "retries": 101}, "retries: must be a whole number from 0 to 100"),
    ("UpdateJobRetries", {"job_key": "1", "retries": -1}, "retries: must be"),
    ("UpdateJobTimeout", {"job_key": "1"}, "timeout: must be a whole number from 1 to 86400000"),
    ("UpdateJobTimeout", {"job_key": "1", "timeout": KEY_63}, "timeout: must be"),
    ("CancelJob", {"job_key": ""}, "job_key: is required"),
    ("FailJob", {"job_key": "x", "retries": -1}, "retries: must be a whole number from 0 to 100"),
    ("CancelJob", {"job_key": "1", "reason": "x" * 8_193}, "reason: must have at most 8,192 characters"),
    ("ListJobs", {"limit": -1}, "limit: must be a whole number from 1 to 1000"),
    ("ListJobs", {"limit": 1_001}, "limit: must be"),
    ("ListJobs", {"offset": -1}, "offset: must be a whole number from 0 to 10000"),
    ("ListJobs", {"offset": 2**31 - 1}, "offset: must be"),
    ("ListJobs", {"offset": 9_991}, "offset: must be at most 10,000 when added to limit"),
    ("ListJobs", {"state": "SLEEPING"}, "state: must be one of"),
    ("ListJobs", {"sort_by": "created_at; DROP TABLE"}, "sort_by: must be one of created_at, activated_at"),
    ("GetJobStats", {"time_range": "2h"}, "time_range: must be one of 1h, 24h, 7d, 30d, not '2h'"),
)
"""A call, what is wrong with it, and how the answer begins."""


async def test_the_jobs_api_names_the_field_and_what_is_allowed(sqlite_server: RunningServer) -> None:
    told = {}
    for at, (name, fields, said) in enumerate(JOBS_MISTAKES):
        call = sqlite_server.poll(**{"type": "", "worker": "", **fields}) if name == "ActivateJobs" else None
        told[f"{at} {name}", said] = await refused(call or sqlite_server.call(name, **fields))
    assert_told(told)


ZEEBE_MISTAKES: Final[Sequence[Mistake]] = (
    ("ActivateJobs", {"type": TYPE, "timeout": 1}, "maxJobsToActivate: must be a whole number from 1"),
    ("ActivateJobs", {"type": TYPE, "maxJobsToActivate": 1}, "timeout: must be a whole number from 1 to 86400000"),
    ("ActivateJobs", {"timeout": 1, "maxJobsToActivate": 1}, "type: must have 1 to 255 characters"),
    ("StreamActivatedJobs", {"type": TYPE, "timeout": -5}, "timeout: must be"),
    (
        "StreamActivatedJobs",
        {"type": TYPE, "timeout": 5, "fetchVariable": ["a"] * 1_001},
        "fetchVariable: must name at most 1,000 variables",
    ),
    ("CompleteJob", {"jobKey": 0}, "jobKey: must be a job key"),
    ("CompleteJob", {"jobKey": -(2**63)}, "jobKey: must be a job key"),
    ("CompleteJob", {"jobKey": 1, "variables": "[1]"}, "variables: must be a JSON object"),
    ("CompleteJob", {"jobKey": 1, "variables": DEEPEST}, f"variables: {TOO_DEEP}"),
    ("FailJob", {"jobKey": 1, "retries": 101}, "retries: must be a whole number from 0 to 100"),
    ("FailJob", {"jobKey": 1, "retryBackOff": -1}, "retryBackOff: must be"),
    ("FailJob", {"jobKey": 1, "variables": "{"}, "variables: must be a JSON object"),
    ("ThrowError", {"jobKey": 1, "errorCode": "x" * 256}, "errorCode: must have at most 255"),
    ("UpdateJobRetries", {"jobKey": 1, "retries": 0}, "retries: must be a whole number from 1 to 100"),
    ("UpdateJobTimeout", {"jobKey": 1, "timeout": 0}, "timeout: must be"),
)


async def test_the_zeebe_gateway_names_the_field_and_what_is_allowed(sqlite_server: RunningServer) -> None:
    told = {}
    for name, fields, said in ZEEBE_MISTAKES:
        request = getattr(gateway_pb2, f"{name}Request")(**fields)
        call = getattr(sqlite_server.zeebe, name)(request, metadata=sqlite_server.metadata, timeout=SECONDS)
        told[name, said] = await call.code(), await call.details()
    assert_told(told)


async def test_long_lists_are_refused_before_they_are_read(sqlite_server: RunningServer) -> None:
    told: dict[tuple[str, str], tuple[StatusCode, str]] = {}
    event = work_pb2.NewJob(type="e")
    many_events = work_pb2.Complete(events=[event] * 10_001)
    many_states = work_pb2.ListRequest(filter=work_pb2.JobFilter(states=[0] * 21))
    for path, request, said in (
        (
            "DeskService/List",
            many_states,
            "states: must be at most 20, not 21",
        ),
        (
            "DeskService/Settle",
            work_pb2.SettleRequest(outcomes=[work_pb2.Outcome(key=1, attempt=1, complete=many_events)]),
            "outcomes[0].events: must be at most 10,000 of one attempt, not 10,001",
        ),
        (
            "WorkService/CreateJobs",
            work_pb2.CreateJobsRequest(jobs=[work_pb2.NewJob()] * 10_001),
            "jobs: must be at most 10,000 in one call, not 10,001",
        ),
    ):
        call: Any = sqlite_server.channel.unary_unary(f"/everwork.v1.{path}", None, None)
        sent = call(request.SerializeToString(), metadata=sqlite_server.metadata, timeout=SECONDS)
        told[path, said] = await refused(sent)
    assert_told(told)


def assert_told(told: Mapping[tuple[str, str], tuple[StatusCode, str]]) -> None:
    """Every mistake was refused as an invalid argument, in the words that were expected."""
    assert {call: answer for call, answer in told.items() if answer[0] is not StatusCode.INVALID_ARGUMENT} == {}
    assert {call: answer for call, answer in told.items() if not answer[1].startswith(call[1])} == {}


SERVICES = [jobs_pb2.DESCRIPTOR.services_by_name["JobsService"], gateway_pb2.DESCRIPTOR.services_by_name["Gateway"]]
PATHS = [(f"/{service.full_name}/{method.name}", method) for service in SERVICES for method in service.methods]
OPEN_PATHS = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]


async def test_what_is_no_message_is_an_invalid_argument(sqlite_server: RunningServer) -> None:
    told = {}
    for path, method in PATHS:
        open_call = sqlite_server.channel.unary_stream if method.server_streaming else sqlite_server.channel.unary_unary
        call: Any = open_call(path, None, None)(b"\xff\xff\xff", metadata=sqlite_server.metadata, timeout=SECONDS)
        told[path, "request: must be a protobuf message of type "] = await call.code(), await call.details()
    assert_told(told)


@pytest.mark.parametrize("path", OPEN_PATHS)
async def test_the_open_services_refuse_nonsense_too(sqlite_server: RunningServer, path: str) -> None:
    call: Any = sqlite_server.channel.unary_stream(path, None, None)(b"\xff\xff\xff", timeout=SECONDS)
    assert await call.code() is StatusCode.INVALID_ARGUMENT


async def test_a_text_that_is_not_utf_8_is_an_invalid_argument(sqlite_server: RunningServer) -> None:
    call: Any = sqlite_server.channel.unary_unary("/atom.jobs.v1.JobsService/GetJob", None, None)
    code, _ = await refused(call(b"\x0a\x02\xff\xfe", metadata=sqlite_server.metadata, timeout=SECONDS))
    assert code is StatusCode.INVALID_ARGUMENT


async def test_unknown_fields_are_no_mistake(sqlite_server: RunningServer) -> None:
    raw = jobs_pb2.CreateJobRequest(job_type=TYPE).SerializeToString() + b"\xc2\x3e\x03new"
    call: Any = sqlite_server.channel.unary_unary("/atom.jobs.v1.JobsService/CreateJob", None, None)
    answer = await call(raw, metadata=sqlite_server.metadata, timeout=SECONDS)
    assert jobs_pb2.CreateJobResponse.FromString(answer).success


async def test_a_message_over_4_mib_is_refused_and_the_connection_goes_on(sqlite_server: RunningServer) -> None:
    large = {"a": "x" * (MESSAGE_BYTES_MAX + 1_048_576)}
    code, _ = await refused(sqlite_server.call("CreateJob", job_type=TYPE, variables=large))
    assert code is StatusCode.RESOURCE_EXHAUSTED
    assert (await sqlite_server.call("ListJobs")).success


@pytest.mark.parametrize("path", ["/gateway_protocol.Gateway/DeployResource", "/atom.jobs.v1.JobsService/Nonsense"])
async def test_calls_that_there_are_not_are_unimplemented(sqlite_server: RunningServer, path: str) -> None:
    call: Any = sqlite_server.channel.unary_unary(path, None, None)
    code, _ = await refused(call(b"", metadata=sqlite_server.metadata, timeout=SECONDS))
    assert code is StatusCode.UNIMPLEMENTED


async def test_an_engine_that_is_away_is_unavailable(sqlite_server: RunningServer) -> None:
    await sqlite_server.service._engine.close()
    for call in (sqlite_server.call("CreateJob", job_type=TYPE), sqlite_server.call("GetJob", job_key="1")):
        code, _ = await refused(call)
        assert code is StatusCode.UNAVAILABLE
