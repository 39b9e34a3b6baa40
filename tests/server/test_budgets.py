"""Budgets over REST and gRPC: how calls above them are refused, and that no other key is affected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import httpx
import pytest

from everwork.exceptions import TooManyRequests
from everwork.proto import jobs_pb2 as pb
from everwork.proto import work_pb2
from everwork.service.access.budgets import BULK_MIN
from everwork.service.access.failures import Throttled
from everwork.service.access.principal import Principal
from everwork.service.access.turns import Turns
from tests.app.waiting import DEADLINE_S, until
from tests.server.whole import TYPE, Whole, running
from tests.stores import url_of

JOBS = "/api/v1/jobs"


class Caller(NamedTuple):
    """The holder of a key."""

    text: str
    principal: Principal


class Doors(NamedTuple):
    """A server with two keys of a noisy tenant, and one of a quiet tenant."""

    whole: Whole
    rest: httpx.AsyncClient
    channel: grpc.aio.Channel
    noisy: Caller
    sibling: Caller
    quiet: Caller

    async def by_rest(self, caller: Caller, query: str = "") -> httpx.Response:
        return await self.rest.get(f"{JOBS}{query}", headers={"X-API-Key": caller.text})

    async def by_grpc(self, caller: Caller) -> pb.GetJobStatsResponse:
        call: Any = self.channel.unary_unary
        raw = await call("/atom.jobs.v1.JobsService/GetJobStats")(b"", metadata=(("x-api-key", caller.text),))
        return pb.GetJobStatsResponse.FromString(raw)

    async def refused_by_grpc(self, caller: Caller) -> tuple[grpc.StatusCode, str, dict[str, str]]:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await self.by_grpc(caller)
        metadata: Any = refusal.value.trailing_metadata() or ()
        trailing = {str(name): str(value) for name, value in metadata}
        return refusal.value.code(), refusal.value.details() or "", trailing


@asynccontextmanager
async def doors(folder: Path, **settings: Any) -> AsyncIterator[Doors]:
    async with running(url_of("sqlite", folder), **settings) as whole:
        url = f"http://127.0.0.1:{whole.ports.http}"
        callers = [await _new_key(whole, tenant) for tenant in ("noisy", "noisy", "quiet")]
        async with httpx.AsyncClient(base_url=url) as rest, whole.channel() as channel:
            yield Doors(whole, rest, channel, *callers)


async def _new_key(whole: Whole, tenant: str) -> Caller:
    new = await whole.server.keys.create(tenant, ["jobs"], tenants=[tenant])
    return Caller(new.text, whole.server.keys.authenticate(new.text))


@asynccontextmanager
async def in_progress(turns: Turns, caller: Caller, requests: int = 1) -> AsyncIterator[None]:
    """Requests of a key that do not end before the test does."""
    for _ in range(requests):
        assert turns.try_enter(caller.principal)
    yield
    for _ in range(requests):
        turns.leave(caller.principal)


async def test_a_key_over_its_budget_of_requests_gets_429_and_another_key_its_answer(tmp_path: Path) -> None:
    async with doors(tmp_path, requests_per_key=2) as at:
        turns = at.whole.service.budgets.requests
        async with in_progress(turns, at.noisy, 2):
            answer = await at.by_rest(at.noisy)
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            detail = "too many requests: 2 of this API key are in progress (setting requests_per_key); retry later"
            assert answer.json()["detail"] == detail
            code, details, trailing = await at.refused_by_grpc(at.noisy)
            assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, detail)
            assert trailing["retry-after-ms"] == "1000"
            for other in (at.sibling, at.quiet):
                assert (await at.by_rest(other)).status_code == 200
                assert (await at.by_grpc(other)).success
        assert (await at.by_rest(at.noisy)).status_code == 200
        assert (await at.by_grpc(at.noisy)).success
        assert turns.held(at.noisy.principal) == 0


async def test_refusals_are_held_back_for_the_key_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    async def hold_back(error: Exception, caller: str) -> None:
        held.append((type(error), caller))

    async with (
        doors(tmp_path, requests_per_key=2, tenant_factor=1, rate_limit=1) as at,
        in_progress(at.whole.service.budgets.requests, at.noisy, 2),
    ):
        monkeypatch.setattr(at.whole.server.keys.failures, "hold_back", hold_back)
        assert (await at.by_rest(at.noisy)).status_code == 429
        await at.refused_by_grpc(at.sibling)  # As yet its rate allows one.
        await at.refused_by_grpc(at.sibling)
    own, together = at.noisy.principal.id, at.sibling.principal.id
    assert held == [(TooManyRequests, own), (TooManyRequests, together), (Throttled, "")]


async def test_the_dashboard_uses_the_budget_of_its_key(tmp_path: Path) -> None:
    async with doors(tmp_path, requests_per_key=2) as at:
        assert (await at.rest.post("/ui/login", data={"key": at.noisy.text})).status_code == 303
        async with in_progress(at.whole.service.budgets.requests, at.noisy, 2):
            assert (await at.rest.get("/ui/jobs")).status_code == 429
        assert (await at.rest.get("/ui/jobs")).status_code == 200


async def test_the_keys_of_one_tenant_have_a_budget_together(tmp_path: Path) -> None:
    async with (
        doors(tmp_path, requests_per_key=2, tenant_factor=1) as at,
        in_progress(at.whole.service.budgets.requests, at.noisy, 2),
    ):
        answer = await at.by_rest(at.sibling)
        assert answer.status_code == 429
        assert "2 of this tenant's API keys are in progress" in answer.json()["detail"]
        code, details, _ = await at.refused_by_grpc(at.sibling)
        assert (code, "tenant_factor" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        assert (await at.by_rest(at.quiet)).status_code == 200


async def test_a_key_over_its_budget_of_searches_can_still_list(tmp_path: Path) -> None:
    async with doors(tmp_path, searches_per_key=1) as at, in_progress(at.whole.service.budgets.searches, at.noisy):
        answer = await at.by_rest(at.noisy, "?variables=needle")
        assert answer.status_code == 429
        assert "too many searches: 1 of this API key are in progress (setting searches_per_key)" in answer.text
        assert (await at.by_rest(at.noisy)).status_code == 200
        assert (await at.by_rest(at.quiet, "?error=needle")).status_code == 200


async def test_a_key_over_its_budget_of_polls_gets_429_at_both_doors(tmp_path: Path) -> None:
    async with doors(tmp_path, pollers_per_key=1, tenant_factor=2) as at:
        polling = [asyncio.create_task(_poll(at, caller)) for caller in (at.noisy, at.sibling)]
        await until(lambda: at.whole.service.waiting("waited-for") == 2)
        body = {"type": TYPE, "worker": "w", "wait": 20}
        answer = await at.rest.post(f"{JOBS}/activate", json=body, headers={"X-API-Key": at.noisy.text})
        assert answer.status_code == 429
        assert "1 polls of this API key are waiting (setting pollers_per_key)" in answer.json()["detail"]
        with pytest.raises(grpc.aio.AioRpcError, match="setting pollers_per_key"):
            await _poll(at, at.noisy)
        third = await _new_key(at.whole, "noisy")
        with pytest.raises(grpc.aio.AioRpcError, match="2 polls of this tenant's API keys are waiting"):
            await _poll(at, third)
        quiet = asyncio.create_task(_poll(at, at.quiet))
        await until(lambda: at.whole.service.waiting("waited-for") == 3)
        for task in (*polling, quiet):
            task.cancel()
        await until(lambda: at.whole.service.waiting("waited-for") == 0)


async def _poll(at: Doors, caller: Caller) -> list[bytes]:
    request = pb.ActivateJobsRequest(type="waited-for", worker="w", max_jobs_to_activate=1).SerializeToString()
    call: Any = at.channel.unary_stream
    path = "/atom.jobs.v1.JobsService/ActivateJobs"
    return [one async for one in call(path)(request, metadata=(("x-api-key", caller.text),))]


async def test_a_caller_that_disconnects_while_it_waits_for_its_turn_is_no_longer_counted(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        bulk, requests = at.whole.service.budgets.bulk, at.whole.service.budgets.requests
        async with in_progress(bulk, at.quiet), in_progress(bulk, at.noisy):
            waiting = asyncio.create_task(_create_many(at, at.noisy))
            await until(lambda: bulk.held(at.noisy.principal) == 2)
            waiting.cancel()
            await until(lambda: bulk.held(at.noisy.principal) == 1)
            await until(lambda: requests.held(at.noisy.principal) == 0)


async def _create_many(at: Doors, caller: Caller) -> bytes:
    batch = [work_pb2.NewJob(type=TYPE, variables=b"{}", tenant="noisy")] * BULK_MIN
    request = work_pb2.CreateJobsRequest(jobs=batch).SerializeToString()
    call: Any = at.channel.unary_unary
    answer: bytes = await call("/everwork.v1.WorkService/CreateJobs")(request, metadata=(("x-api-key", caller.text),))
    return answer


async def test_a_refused_and_a_failed_request_are_no_longer_counted(tmp_path: Path) -> None:
    async with doors(tmp_path) as at:
        answers = [
            await at.by_rest(at.noisy, "/999"),
            await at.rest.post(JOBS, content=b"{", headers={"X-API-Key": at.noisy.text, "Content-Type": "text/plain"}),
            await at.rest.post(JOBS, json={"type": ""}, headers={"X-API-Key": at.noisy.text}),
        ]
        assert [answer.status_code for answer in answers] == [404, 415, 422]
        assert at.whole.service.budgets.requests.held(at.noisy.principal) == 0


async def test_without_authentication_all_callers_share_one_budget(tmp_path: Path) -> None:
    async with running(url_of("sqlite", tmp_path), auth="off", requests_per_key=1) as whole:
        turns = whole.service.budgets.requests
        anybody = Caller("", whole.server.keys.authenticate(None))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{whole.ports.http}", timeout=DEADLINE_S) as rest:
            async with in_progress(turns, anybody):
                assert (await rest.get(JOBS)).status_code == 429
                assert (await rest.get("/healthz")).status_code == 200
            assert (await rest.get(JOBS)).status_code == 200
