"""Our own calls, `everwork.v1.DeskService`: what fits into messages, what is written down, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from grpc import StatusCode

from everwork.codec import proto_replies as replies
from everwork.core.job import HistoryEntry, NewJob
from everwork.core.leasing import Demand
from everwork.core.limits import (
    ERROR_CHARS_MAX,
    FILTER_STATES_MAX,
    HISTORY_ENTRIES_MAX,
    NAME_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
)
from everwork.core.outcome import Complete, Failed
from everwork.core.queries import Count, Stats, WorkerHour
from everwork.core.states import State
from everwork.proto import work_pb2 as pb
from everwork.proto import work_pb2_grpc
from everwork.server.grpc import jobs_replies
from everwork.server.grpc.gateway import DETAILS_BYTES_MAX, DETAILS_CHARS_MAX, cut_to_fit, peer_address
from everwork.service.access.audit import Audit
from tests.server.grpc.conftest import OpenServer
from tests.server.grpc.running import SECONDS, TYPE, RunningServer, refused


async def ask(server: RunningServer, name: str, request: Any) -> Any:
    """The answer to one call."""
    stub = work_pb2_grpc.DeskServiceAsyncStub(server.channel)
    return await getattr(stub, name)(request, metadata=server.metadata, timeout=SECONDS)


async def ended(server: RunningServer, error: str = "") -> int:
    """A job that is completed or, with an error, a dead letter."""
    [created] = await server.service.create([NewJob(TYPE)])
    [job] = await server.service.activate(Demand(TYPE, "w1", 1))
    outcome = Failed(job.key, job.attempt, error, final=True) if error else Complete(job.key, job.attempt)
    await server.service.settle([outcome])
    return created.key


# What fits into messages --------------------------------------------------------------------------------


async def test_details_in_any_script_reach_the_caller(sqlite_server: RunningServer) -> None:
    key = await ended(sqlite_server, "错🔑%" * 1_000)
    code, details = await refused(ask(sqlite_server, "Result", pb.ResultRequest(key=key)))
    assert code is StatusCode.FAILED_PRECONDITION
    assert details.startswith(f"Job '{key}' failed: 错🔑%错🔑%")


@pytest.mark.parametrize("sign", ["a", "%", "ü", "错", "🔑", "\n", "\udcff"])
def test_details_are_cut_by_what_they_cost_on_the_way(sign: str) -> None:
    kept = cut_to_fit(sign * 10_000)
    cost = len(kept) if sign == "a" else 3 * len(kept.encode(errors="replace"))
    assert cost <= DETAILS_BYTES_MAX
    assert len(kept) == DETAILS_CHARS_MAX or cost > DETAILS_BYTES_MAX - 12


def test_a_long_history_fits_into_a_message() -> None:
    one = HistoryEntry(1, "fail", 1, "错" * NAME_CHARS_MAX, "🔑" * ERROR_CHARS_MAX)
    told = replies.history_message([one] * HISTORY_ENTRIES_MAX)
    assert told.ByteSize() <= replies.MESSAGE_BYTES_MAX
    assert len(told.entries) == HISTORY_ENTRIES_MAX
    assert {entry.error.strip("🔑") for entry in told.entries} == {""}


def test_a_history_with_many_long_tracebacks_leaves_out_the_oldest() -> None:
    one = HistoryEntry(1, "fail", 1, "w", "🔑" * ERROR_CHARS_MAX, traceback="错" * TRACEBACK_CHARS_MAX)
    told = replies.history_message([one] * HISTORY_ENTRIES_MAX)
    assert replies.MESSAGE_BYTES_MAX * 0.98 < told.ByteSize() <= replies.MESSAGE_BYTES_MAX
    has_it = [entry.HasField("traceback") for entry in told.entries]
    assert (has_it == sorted(has_it), has_it[-1]) == (True, True)
    assert told.entries[-1].traceback == one.traceback


def test_a_history_that_fits_is_told_in_full() -> None:
    one = HistoryEntry(1, "fail", 1, "w", "🔑" * ERROR_CHARS_MAX)
    assert replies.history_message([one, one._replace(error=None)]).entries[0].error == one.error
    assert not replies.history_message([one._replace(error=None)]).entries[0].HasField("error")


def many_figures() -> Iterator[tuple[Count, WorkerHour]]:
    for n in range(20_000):
        name = f"{'n' * 200}{n}"
        yield Count(name, TYPE, "", State.PENDING, n), WorkerHour(n, TYPE, name, n, 0, 0, 0, 0)


def test_statistics_of_many_tenants_and_workers_fit_into_a_message() -> None:
    counts, hours = zip(*many_figures(), strict=True)
    told = replies.stats_message(Stats(list(counts), list(hours), 1))
    assert told.ByteSize() <= replies.MESSAGE_BYTES_MAX
    assert told.partial
    assert (told.counts[0].jobs, told.hours[0].hour) == (19_999, 19_999)
    assert min(len(told.counts), len(told.hours)) > 1_000
    assert not replies.stats_message(Stats(list(counts[:10]), list(hours[:10]), 1)).partial


def test_statistics_of_the_jobs_api_fit_into_a_message() -> None:
    figures = list(many_figures())
    counts = [count._replace(type=count.tenant) for count, _ in figures]
    told = jobs_replies.stats_view(Stats(counts, [hour for _, hour in figures], 1), "", "")
    assert told.ByteSize() <= replies.MESSAGE_BYTES_MAX
    assert told.total_jobs == sum(range(20_000))
    assert max(told.by_type.values()) == max(told.by_worker.values()) == 19_999


def test_numbers_that_a_message_has_no_room_for_are_the_largest_that_it_has() -> None:
    assert jobs_replies.int32(2**40) == 2**31 - 1


# What is written down -----------------------------------------------------------------------------------


async def test_deletions_and_bulk_requeues_are_in_the_audit_log(sqlite_server: RunningServer) -> None:
    done, dead = await ended(sqlite_server), await ended(sqlite_server, "boom")
    assert (await ask(sqlite_server, "Delete", pb.JobRequest(key=done))).state == State.COMPLETED
    change = await ask(
        sqlite_server, "RequeueMatching", pb.RequeueMatchingRequest(filter=pb.JobFilter(type=TYPE, error_text="boo"))
    )
    assert (change.matched, change.changed) == (1, 1)
    assert (await sqlite_server.service.get(dead)).state is State.PENDING
    requeued, deleted = await Audit(sqlite_server.service._engine).last(10)
    assert (deleted.action, deleted.target, deleted.origin) == ("jobs.delete", str(done), "127.0.0.1")
    assert (requeued.action, requeued.target, requeued.origin) == ("jobs.requeue", TYPE, "127.0.0.1")
    assert requeued.detail == {"matched": 1, "changed": 1, "filter": {"type": TYPE, "error_text": "boo"}}


async def test_a_trusted_proxy_tells_where_a_call_comes_from(open_server: OpenServer) -> None:
    server = await open_server(trusted_proxies=("127.0.0.0/8", "10.0.0.1"))
    forwarded = ("x-forwarded-for", "6.6.6.6, ::ffff:203.0.113.9, 10.0.0.1")
    server.metadata = (*server.metadata, forwarded)
    await ask(server, "Delete", pb.JobRequest(key=await ended(server)))
    [deleted] = await Audit(server.service._engine).last(1)
    assert deleted.origin == "203.0.113.9"


@pytest.mark.parametrize(
    ("peer", "origin"),
    [
        ("ipv4:10.0.0.7:5123", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:5123", "2001:db8::1"),
        ("ipv6:[::1]:5123", "::1"),
        ("unix:/run/everwork.sock", "/run/everwork.sock"),
        ("unix:", "unix"),
    ],
)
def test_the_origin_is_the_caller_s_address(peer: str, origin: str) -> None:
    assert peer_address(peer) == origin


# What is refused ----------------------------------------------------------------------------------------


async def test_a_filter_names_each_state_a_few_times_at_most(sqlite_server: RunningServer) -> None:
    for states, code in ((FILTER_STATES_MAX, StatusCode.OK), (FILTER_STATES_MAX + 1, StatusCode.INVALID_ARGUMENT)):
        request = pb.ListRequest(filter=pb.JobFilter(states=[State.PENDING] * states))
        call = work_pb2_grpc.DeskServiceAsyncStub(sqlite_server.channel).List(
            request, metadata=sqlite_server.metadata, timeout=SECONDS
        )
        assert await call.code() is code


async def test_every_dead_letter_is_brought_back_only_if_that_is_said(sqlite_server: RunningServer) -> None:
    dead = await ended(sqlite_server, "boom")
    for request, said in (
        (pb.RequeueMatchingRequest(), "all: must be true to select every dead letter"),
        (pb.RequeueMatchingRequest(filter=pb.JobFilter(states=[pb.FAILED])), "all: must be true"),
        (pb.RequeueMatchingRequest(filter=pb.JobFilter(type=TYPE), all=True), "all: cannot be combined"),
        (pb.RequeueMatchingRequest(filter=pb.JobFilter(error_text=" ")), "error_text: must have 1 to 8,192 characters"),
        (pb.RequeueMatchingRequest(filter=pb.JobFilter(variables_text="")), "variables_text: must have 1 to 8,192"),
        (pb.RequeueMatchingRequest(filter=pb.JobFilter(dedupe_key="")), "dedupe_key: must have 1 to 255 characters"),
        (pb.RequeueMatchingRequest(filter=pb.JobFilter(type="")), "type: must have 1 to 255 characters"),
    ):
        code, details = await refused(ask(sqlite_server, "RequeueMatching", request))
        assert (code, details[: len(said)]) == (StatusCode.INVALID_ARGUMENT, said)
    assert (await sqlite_server.service.get(dead)).state is State.FAILED
    assert (await ask(sqlite_server, "RequeueMatching", pb.RequeueMatchingRequest(all=True))).changed == 1


async def test_tenants_are_named_once_and_not_without_end(sqlite_server: RunningServer) -> None:
    many = [f"t{n}" for n in range(1_001)]
    for name, request in (
        ("List", pb.ListRequest(filter=pb.JobFilter(tenants=many))),
        ("List", pb.ListRequest(filter=pb.JobFilter(tenants=[""]))),
    ):
        code, details = await refused(ask(sqlite_server, name, request))
        assert (code, details[:13]) == (StatusCode.INVALID_ARGUMENT, "tenants: must")
    assert not (await ask(sqlite_server, "List", pb.ListRequest(filter=pb.JobFilter(tenants=["a"] * 2_000)))).jobs


@pytest.mark.parametrize(
    ("name", "fields"),
    [("FailJob", {}), ("ThrowError", {"error_code": "E"})],
)
async def test_variables_that_are_too_large_together_are_named_as_in_the_message(
    sqlite_server: RunningServer, name: str, fields: dict[str, str]
) -> None:
    job = await sqlite_server.an_activated_job(variables={"a": "x" * 700_000})
    more = '{"b": "' + "y" * 700_000 + '"}'
    call = sqlite_server.call(name, job_key=job.job_key, attempt=job.attempt, variables_json=more, **fields)
    code, details = await refused(call)
    assert (code, details[:31]) == (StatusCode.INVALID_ARGUMENT, "variables_json: must be at most")
