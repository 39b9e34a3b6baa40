"""The eleven calls of the jobs API, on every engine."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from grpc import StatusCode

from everwork.core.states import State
from everwork.service.jobs import in_process
from tests.server.grpc.running import TYPE, RunningServer, refused

FINISHED = "not found or already completed"


@pytest.mark.every_engine
async def test_a_created_job_is_handed_out_with_everything_that_was_said_of_it(server: RunningServer) -> None:
    created = await server.call(
        "CreateJob",
        job_type=TYPE,
        retries=3,
        variables={"url": "http://x", "n": "5"},
        custom_headers={"h": "1"},
        timeout=5_000,
        process_instance_key="pi-1",
        element_id="task-1",
        bpmn_process_id="order",
        process_definition_version="7",
        process_definition_key="pd-1",
        element_instance_key="ei-1",
    )
    [job] = await server.activate(timeout=60_000)
    assert created.success
    assert job.job_key == created.job_key
    assert json.loads(job.variables) == {"url": "http://x", "n": "5"}
    assert dict(job.custom_headers) == {"h": "1"}
    assert (job.retries, job.worker, job.tenant_id, job.attempt) == (3, "w1", "<default>", 1)
    assert (job.process_instance_key, job.element_id, job.bpmn_process_id) == ("pi-1", "task-1", "order")
    assert (job.process_definition_version, job.process_definition_key, job.element_instance_key) == (
        "7",
        "pd-1",
        "ei-1",
    )
    stored = await server.job(job.job_key)
    assert job.deadline == stored.lease_until_ms
    assert stored.timeout_ms == 5_000
    assert datetime.fromisoformat(created.created_at).timestamp() * 1000 == pytest.approx(stored.created_at_ms, abs=1)


async def test_our_own_fields_of_a_new_job_are_kept(server: RunningServer) -> None:
    key = await server.create(
        variables_json='{"n": 5, "deep": {"list": [1, null]}}',
        tenant_id="acme",
        priority=7,
        delay_ms=60_000,
        dedupe_key="once",
        correlation_id="c-1",
        expires_at="2099-01-01T00:00:00Z",
        limit_key="l-1",
    )
    job = await server.job(key)
    assert json.loads(job.variables) == {"n": 5, "deep": {"list": [1, None]}}
    assert (job.tenant, job.priority, job.dedupe_key, job.limit_key) == ("acme", 7, "once", "l-1")
    assert (job.correlation_id, job.expires_at_ms) == ("c-1", 4_070_908_800_000)
    assert job.run_at_ms == job.created_at_ms + 60_000


async def test_a_dedupe_key_answers_the_first_job_and_says_so(server: RunningServer) -> None:
    first = await server.call("CreateJob", job_type=TYPE, dedupe_key="once")
    again = await server.call("CreateJob", job_type=TYPE, dedupe_key="once")
    assert (again.job_key, again.deduplicated, first.deduplicated) == (first.job_key, True, False)
    assert again.created_at == first.created_at


async def test_fetch_variable_filters_the_top_level_names(server: RunningServer) -> None:
    await server.create(variables_json='{"url": "u", "method": 1, "body": {"url": 2}}')
    [job] = await server.activate(fetch_variable=["url", "body", "missing"])
    assert json.loads(job.variables) == {"url": "u", "body": {"url": 2}}


async def test_values_of_maps_stay_texts(server: RunningServer) -> None:
    job = await server.an_activated_job(variables={"n": "5", "t": "true", "z": "null"})
    await server.call("CompleteJob", job_key=job.job_key, variables={"status": "200"})
    assert json.loads(job.variables) == {"n": "5", "t": "true", "z": "null"}
    assert json.loads((await server.job(job.job_key)).result or "") == {"status": "200"}


@pytest.mark.every_engine
async def test_a_completed_job_keeps_its_result_apart_from_its_input(server: RunningServer) -> None:
    job = await server.an_activated_job(variables={"in": "1"})
    answer = await server.call("CompleteJob", job_key=job.job_key, attempt=job.attempt, variables_json="[1, 2]")
    stored = await server.job(job.job_key)
    assert answer.success
    assert (stored.state, stored.variables, stored.result) == (State.COMPLETED, '{"in":"1"}', "[1,2]")


async def test_a_second_outcome_is_refused_with_the_words_that_callers_know(server: RunningServer) -> None:
    job = await server.an_activated_job()
    await server.call("CompleteJob", job_key=job.job_key)
    answer = await server.call("FailJob", job_key=job.job_key, retries=1, error_message="late")
    assert (answer.success, answer.message) == (False, f"Job '{job.job_key}' {FINISHED}")
    assert (await server.job(job.job_key)).state is State.COMPLETED


@pytest.mark.parametrize("name", ["CompleteJob", "FailJob", "ThrowError"])
async def test_outcomes_for_jobs_that_nobody_holds_are_refused_honestly(server: RunningServer, name: str) -> None:
    code = {"error_code": "E"} if name == "ThrowError" else {}
    key = await server.create()
    pending = await server.call(name, job_key=key, **code)
    await server.call("CancelJob", job_key=key)
    cancelled = await server.call(name, job_key=key, **code)
    assert (pending.success, pending.message) == (False, f"Job '{key}' is not activated")
    assert (cancelled.success, cancelled.message) == (False, f"Job '{key}' was cancelled")


async def test_an_old_attempt_has_lost_its_lease(server: RunningServer) -> None:
    job = await server.an_activated_job()
    await server.call("FailJob", job_key=job.job_key, retries=3, attempt=job.attempt)
    [again] = await server.activate()
    late = await server.call("CompleteJob", job_key=job.job_key, attempt=job.attempt)
    good = await server.call("CompleteJob", job_key=job.job_key, attempt=again.attempt)
    assert not late.success
    assert "lease lost" in late.message
    assert good.success


async def test_a_failure_without_backoff_runs_again_at_once_with_the_retries_it_named(server: RunningServer) -> None:
    job = await server.an_activated_job(retries=5)
    assert (await server.call("FailJob", job_key=job.job_key, retries=2, error_message="refused")).success
    [again] = await server.activate()
    assert (again.job_key, again.retries, again.attempt) == (job.job_key, 2, 2)


async def test_a_failure_with_backoff_waits(server: RunningServer) -> None:
    job = await server.an_activated_job()
    await server.call("FailJob", job_key=job.job_key, retries=2, backoff_timeout=60_000, error_message="busy")
    stored = await server.job(job.job_key)
    assert (stored.state, stored.last_error) == (State.PENDING, "busy")
    assert stored.run_at_ms > stored.created_at_ms + 50_000
    assert await server.activate() == []


async def test_a_failure_without_retries_is_for_good(server: RunningServer) -> None:
    job = await server.an_activated_job()
    await server.call("FailJob", job_key=job.job_key, retries=0, error_message="wrong address")
    assert (await server.job(job.job_key)).state is State.FAILED


async def test_a_failure_by_policy_waits_as_the_policy_says(server: RunningServer) -> None:
    job = await server.an_activated_job()
    await server.call("FailJob", job_key=job.job_key, by_policy=True, error_message="odd")
    stored = await server.job(job.job_key)
    assert stored.state is State.PENDING
    assert stored.run_at_ms >= stored.created_at_ms + 4_000


@pytest.mark.parametrize(
    ("error", "delay_ms"),
    [("HTTP 429: Too Many Requests", 60_000), ("Service Unavailable", 10_000), ("timeout", 2_000)],
)
async def test_a_failure_by_policy_is_classified_by_its_text(server: RunningServer, error: str, delay_ms: int) -> None:
    job = await server.an_activated_job()
    await server.call("FailJob", job_key=job.job_key, by_policy=True, error_message=error)
    [entry] = await in_process(server.service).history(int(job.job_key))
    assert (entry.retry_at_ms or 0) - entry.at_ms == delay_ms


@pytest.mark.parametrize(("name", "more"), [("FailJob", {"retries": 1}), ("ThrowError", {"error_code": "NO"})])
async def test_a_failure_may_bring_a_traceback(server: RunningServer, name: str, more: dict[str, Any]) -> None:
    job = await server.an_activated_job()
    await server.call(name, job_key=job.job_key, traceback="panic\n" + "at send\n" * 10_000, **more)
    [entry] = await in_process(server.service).history(int(job.job_key))
    assert str(entry.traceback).startswith("panic\n  [71,")


@pytest.mark.every_engine
async def test_a_failure_may_bring_variables_for_the_next_attempt(server: RunningServer) -> None:
    job = await server.an_activated_job(variables={"a": "1", "b": "2"})
    await server.call("FailJob", job_key=job.job_key, retries=1, variables_json='{"b": 3}')
    [again] = await server.activate()
    assert json.loads(again.variables) == {"a": "1", "b": 3}


async def test_an_error_that_is_too_long_is_cut_and_not_refused(server: RunningServer) -> None:
    job = await server.an_activated_job()
    answer = await server.call("FailJob", job_key=job.job_key, error_message="x\0" * 10_000)
    assert answer.success
    assert len((await server.job(job.job_key)).last_error or "") == 8_192


async def test_a_thrown_error_fails_the_job_for_good_and_is_not_caught(server: RunningServer) -> None:
    job = await server.an_activated_job(variables={"a": "1"})
    answer = await server.call(
        "ThrowError", job_key=job.job_key, error_code="NO_FUNDS", error_message="broke", variables={"b": "2"}
    )
    stored = await server.job(job.job_key)
    assert (answer.success, answer.error_caught) == (True, False)
    assert (stored.state, stored.error_code, stored.last_error) == (State.FAILED, "NO_FUNDS", "broke")
    assert json.loads(stored.variables) == {"a": "1", "b": "2"}


async def test_retries_can_be_changed_and_the_previous_number_is_told(server: RunningServer) -> None:
    key = await server.create(retries=3)
    answer = await server.call("UpdateJobRetries", job_key=key, retries=9)
    zero = await server.call("UpdateJobRetries", job_key=key, retries=0)
    assert (answer.success, answer.previous_retries) == (True, 3)
    assert (await server.job(key)).retries == 9
    assert not zero.success
    assert "cancel it instead" in zero.message


async def test_a_lease_can_be_prolonged_by_the_attempt_that_holds_it(server: RunningServer) -> None:
    job = await server.an_activated_job()
    answer = await server.call("UpdateJobTimeout", job_key=job.job_key, timeout=3_600_000)
    other = await server.call("UpdateJobTimeout", job_key=job.job_key, timeout=1_000, attempt=job.attempt + 1)
    assert answer.success
    assert (await server.job(job.job_key)).lease_until_ms > job.deadline + 3_000_000
    assert not other.success
    assert "lease lost" in other.message


async def test_the_lease_of_a_job_that_is_not_activated_cannot_be_prolonged(server: RunningServer) -> None:
    key = await server.create()
    answer = await server.call("UpdateJobTimeout", job_key=key, timeout=1_000)
    assert (answer.success, answer.message) == (False, f"Job '{key}' is not activated")


async def test_cancelling_tells_the_state_in_which_the_job_was(server: RunningServer) -> None:
    job = await server.an_activated_job()
    waiting = await server.create()
    assert (await server.call("CancelJob", job_key=waiting)).previous_state == "PENDING"
    assert (await server.call("CancelJob", job_key=job.job_key, reason="no more")).previous_state == "PROCESSING"
    assert (await server.job(job.job_key)).last_error == "no more"


async def test_a_completed_job_cannot_be_cancelled(server: RunningServer) -> None:
    job = await server.an_activated_job()
    await server.call("CompleteJob", job_key=job.job_key)
    answer = await server.call("CancelJob", job_key=job.job_key)
    assert (answer.success, answer.message) == (False, f"Job '{job.job_key}' {FINISHED}")


@pytest.mark.every_engine
async def test_a_job_shows_everything_that_is_known_of_it(server: RunningServer) -> None:
    job = await server.an_activated_job(variables_json='{"a": "x", "n": 5}', custom_headers={"h": "1"}, element_id="e")
    await server.call("FailJob", job_key=job.job_key, retries=0, error_message="broken")
    answer = await server.call("GetJob", job_key=job.job_key)
    shown = answer.job
    assert answer.success
    assert (shown.job_key, shown.job_type, shown.state, shown.worker) == (job.job_key, TYPE, "FAILED", "w1")
    assert (dict(shown.variables), dict(shown.custom_headers)) == ({"a": "x", "n": "5"}, {"h": "1"})
    assert json.loads(shown.variables_json) == {"a": "x", "n": 5}
    assert (shown.error_message, shown.retries, shown.element_id, shown.attempt) == ("broken", 0, "e", 1)
    assert shown.created_at <= shown.activated_at <= shown.completed_at


async def test_a_paused_type_is_named_at_the_end_of_an_empty_poll(server: RunningServer) -> None:
    await server.create()
    await server.service._engine.pause(TYPE, True)
    [message] = await server.poll()
    assert not message.success
    assert message.error_message == f"type '{TYPE}' is paused until it is resumed"
    assert not message.jobs


@pytest.mark.every_engine
async def test_statistics_count_jobs_and_what_workers_did(server: RunningServer) -> None:
    done = await server.an_activated_job()
    await server.call("CompleteJob", job_key=done.job_key)
    failed = await server.an_activated_job()
    await server.call("FailJob", job_key=failed.job_key, retries=0)
    await server.create(job_type="other")
    stats = (await server.call("GetJobStats", time_range="1h")).stats
    one = (await server.call("GetJobStats", job_type=TYPE, worker="w1")).stats
    assert (stats.total_jobs, dict(stats.by_state)) == (3, {"COMPLETED": 1, "FAILED": 1, "PENDING": 1})
    assert (dict(stats.by_type), dict(stats.by_worker)) == ({TYPE: 2, "other": 1}, {"w1": 2})
    assert (stats.performance.successful_jobs, stats.performance.failed_jobs) == (1, 1)
    assert stats.performance.success_rate == 50
    assert (one.total_jobs, one.performance.successful_jobs) == (2, 1)


async def test_outcomes_that_name_no_attempt_are_counted(server: RunningServer) -> None:
    first, second = await server.an_activated_job(), await server.an_activated_job()
    await server.call("CompleteJob", job_key=first.job_key, attempt=first.attempt)
    await server.call("CompleteJob", job_key=second.job_key)
    assert b'everwork_unfenced_outcomes_total{door="jobs"} 1.0' in server.metrics.text()


NO_SUCH_JOB = "123456789"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("CompleteJob", {}),
        ("FailJob", {}),
        ("FailJob", {"variables_json": '{"a": 1}'}),
        ("ThrowError", {"error_code": "E"}),
        ("UpdateJobRetries", {"retries": 1}),
        ("UpdateJobTimeout", {"timeout": 1}),
        ("CancelJob", {}),
        ("GetJob", {}),
    ],
)
async def test_a_job_that_does_not_exist_is_not_found(
    server: RunningServer, name: str, fields: dict[str, object]
) -> None:
    code, details = await refused(server.call(name, job_key=NO_SUCH_JOB, **fields))
    text = "not found" if name == "GetJob" else "not found or already completed"
    assert (code, details) == (StatusCode.NOT_FOUND, f"Job '{NO_SUCH_JOB}' {text}")
