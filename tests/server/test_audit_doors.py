"""Changes of jobs are in the audit log whatever door they come through."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from grpc import StatusCode

from everwork.aio.loops import shielded
from everwork.client import Client
from everwork.proto import gateway_pb2, jobs_pb2, work_pb2
from everwork.service.access.principal import Permission
from tests.app.waiting import until
from tests.server.grpc.running import KEY, SECONDS, RunningServer, refused, running_server
from tests.server.http.serving import JOBS, serving
from tests.stores import url_of

if TYPE_CHECKING:
    from pathlib import Path

    from everwork.service.service import JobService

pytestmark = pytest.mark.every_engine
TYPE = "email-send"


async def entries(service: JobService) -> list[tuple[str, str, str, dict[str, Any]]]:
    """The log, oldest first, without who it was."""
    found = reversed(await service.audit.last(100))
    return [(one.action, one.target, one.origin, dict(one.detail)) for one in found]


async def test_over_rest(engine_name: str, tmp_path: Path) -> None:
    async with serving(url_of(engine_name, tmp_path)) as rest:
        key = (await rest.job(run_at="2999-01-01T00:00:00Z"))["key"]
        await rest.ok("PUT", f"{JOBS}/{key}/priority", {"priority": 5})
        await rest.ok("PUT", f"{JOBS}/{key}/retries", {"retries": 2})
        await rest.ok("PUT", f"{JOBS}/{key}/reschedule", {"delay_ms": 60_000})
        await rest.ok("PUT", f"{JOBS}/{key}/run-now")
        await rest.ok("PUT", f"{JOBS}/{key}/cancel", {"reason": "not needed"})
        dead = (await rest.dead_letter(type="other"))["key"]
        await rest.ok("PUT", f"{JOBS}/{dead}/requeue")
        await rest.refused(409, "PUT", f"{JOBS}/{key}/requeue")
        assert await entries(rest.service) == [
            ("jobs.priority", key, "127.0.0.1", {"priority": 5}),
            ("jobs.retries", key, "127.0.0.1", {"retries": 2}),
            ("jobs.reschedule", key, "127.0.0.1", {"delay_ms": 60_000}),
            ("jobs.run-now", key, "127.0.0.1", {}),
            ("jobs.cancel", key, "127.0.0.1", {"reason": "not needed"}),
            ("jobs.requeue", dead, "127.0.0.1", {}),
        ]


async def test_over_grpc_with_our_client(engine_name: str, tmp_path: Path) -> None:
    async with running_server(url_of(engine_name, tmp_path)) as server:
        made = await server.keys.create("ci", [Permission.JOBS.value])
        async with Client(f"grpc://127.0.0.1:{server.port}", key=made.text) as client:
            first, second = [one.key for one in await client.create_many([(TYPE, {}), (TYPE, {})])]
            await client.set_priority(first, 5)
            await client.set_retries(first, 2)
            await client.reschedule(first, delay=60)
            await client.run_now(first)
            await client.cancel(first, "not needed")
            await client.cancel(second, "not needed")
        await server.service.close_audit()
        both = {"reason": "not needed", "changed": 2, "keys": [str(first), str(second)]}
        assert await entries(server.service) == [
            ("jobs.priority", str(first), "127.0.0.1", {"priority": 5}),
            ("jobs.retries", str(first), "127.0.0.1", {"retries": 2}),
            ("jobs.reschedule", str(first), "127.0.0.1", {"delay_ms": 60_000}),
            ("jobs.run-now", str(first), "127.0.0.1", {}),
            ("jobs.cancel", "*", "127.0.0.1", both),
        ]
        assert {(one.key_id, one.who) for one in await server.service.audit.last(10)} == {(made.key.id, "ci")}


async def test_over_the_jobs_api_and_the_zeebe_gateway(engine_name: str, tmp_path: Path) -> None:
    async with running_server(url_of(engine_name, tmp_path)) as server:
        key = await server.create()
        await server.call("UpdateJobRetries", jobs_pb2.UpdateJobRetriesRequest(job_key=key, retries=2))
        await server.call("CancelJob", job_key=key, reason="not needed")
        job = await server.an_activated_job()
        request = gateway_pb2.UpdateJobRetriesRequest(jobKey=int(job.job_key), retries=2)
        await server.zeebe.UpdateJobRetries(request, metadata=(("x-api-key", KEY),), timeout=SECONDS)
        await server.service.close_audit()
        both = {"retries": 2, "changed": 2, "keys": [key, job.job_key]}
        assert await entries(server.service) == [
            ("jobs.retries", "*", "127.0.0.1", both),
            ("jobs.cancel", key, "127.0.0.1", {"reason": "not needed"}),
        ]


async def test_the_address_of_a_caller_whose_deadline_has_passed_is_known(engine_name: str, tmp_path: Path) -> None:
    async with running_server(url_of(engine_name, tmp_path)) as server:
        key = await server.create()
        await server.call("CancelJob", job_key=key, reason="not needed")
        await _after_the_deadline(server, "delete", "Delete", work_pb2.JobRequest(key=int(key)))
        await until(lambda: _has(server, "jobs.delete"))
        assert {one.origin for one in await server.service.audit.last(10)} == {"127.0.0.1"}


async def test_it_stays_in_the_entry_of_a_bulk_change_that_is_written_again(engine_name: str, tmp_path: Path) -> None:
    async with running_server(url_of(engine_name, tmp_path)) as server:
        job = await server.an_activated_job()
        await server.call("FailJob", job_key=job.job_key, attempt=job.attempt, retries=0, error_message="lost")
        await _after_the_deadline(server, "requeue", "RequeueMatching", work_pb2.RequeueMatchingRequest(all=True))
        await until(lambda: _has(server, "jobs.requeue"))
        assert {one.origin for one in await server.service.audit.last(10)} == {"127.0.0.1"}


async def _has(server: RunningServer, action: str) -> bool:
    return any(one.action == action for one in await server.service.audit.last(10))


async def _after_the_deadline(server: RunningServer, change: str, name: str, request: Any) -> None:
    """Call, and let the engine make the change once the server has noticed that the deadline has passed."""
    engine, begun, noticed = server.service._engine, asyncio.Event(), asyncio.Event()
    make = getattr(engine, change)

    async def slow(keys: Any) -> Any:
        begun.set()
        await noticed.wait()
        return await make(keys)

    def noticing(work: Any, on_cancel: Any = noticed.set) -> Any:
        def notice() -> None:
            on_cancel()
            noticed.set()

        return shielded(work, notice)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, change, slow)
        patch.setattr("everwork.service.verb.shielded", noticing)
        patch.setattr("everwork.service.bulk.shielded", noticing)
        method = server.channel.unary_unary(f"/everwork.v1.DeskService/{name}", type(request).SerializeToString, bytes)
        while not begun.is_set():
            status, _ = await refused(method(request, metadata=server.metadata, timeout=0.3))
            assert status is StatusCode.DEADLINE_EXCEEDED
        await noticed.wait()


async def test_in_process_nothing_is_written(engine_name: str, tmp_path: Path) -> None:
    url = url_of(engine_name, tmp_path)
    async with Client(url) as client:
        key = (await client.create(TYPE)).key
        await client.set_priority(key, 5)
        await client.cancel(key)
        await client.delete(key)
    async with serving(url) as rest:
        assert await entries(rest.service) == []
