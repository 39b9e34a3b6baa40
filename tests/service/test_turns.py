"""Turns: budgets of keys and tenants, the order of service, and counts that always return to zero."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everwork.cli.serving import switch_threads
from everwork.exceptions import TooManyRequests
from everwork.service.access.principal import Permission, Principal
from everwork.service.access.turns import Budget, Turns
from tests.app.waiting import DEADLINE_S, until

QUIET, NOISY, SIBLING = (
    Principal(id, id, frozenset([Permission.JOBS]), (tenant,))
    for id, tenant in (("quiet", "q"), ("noisy", "n"), ("sibling", "n"))
)
UNBOUND = Principal("unbound", "unbound", frozenset([Permission.ALL]))


def turns_of(per_key: int = 100, *, tenant_factor: int = 4, running: int = 1, alone: int = 1_000) -> Turns:
    """Turns that never adapt, because the event loop never seems slow or idle."""
    return Turns(Budget("requests", "requests_per_key", per_key, tenant_factor, running, running, alone))


class Requests:
    """Requests of several keys, and the order in which they were served."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: dict[str, asyncio.Event] = {}

    async def send(self, principal: Principal, *names: str) -> None:
        """Requests that run until `end` is called."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks.append(asyncio.create_task(self._serve(principal, name)))
        await settled()

    async def end(self, *names: str) -> None:
        for name in names:
            self.ends[name].set()
            await settled()

    async def _serve(self, principal: Principal, name: str) -> None:
        async with self.turns.of(principal):
            self.served.append(name)
            await self.ends[name].wait()


async def settled() -> None:
    """Let every task run as far as it can."""
    for _ in range(6):
        await asyncio.sleep(0)


async def test_a_party_that_is_alone_runs_as_many_requests_as_it_sends() -> None:
    requests = Requests(turns_of(running=1))
    await requests.send(NOISY, *"abcdef")
    assert requests.served == [*"abcdef"]


async def test_a_quiet_tenant_does_not_wait_behind_the_queue_of_a_noisy_one() -> None:
    requests = Requests(turns_of(running=1))
    await requests.send(QUIET, "q1")
    await requests.send(NOISY, *"abcdef")
    await requests.end("q1")
    await requests.send(QUIET, "q2")
    assert requests.served == ["q1", "a", "q2"]


async def test_the_waiting_requests_of_a_party_run_in_order_as_others_end() -> None:
    requests = Requests(turns_of(running=2))
    await requests.send(QUIET, "q")
    await requests.send(NOISY, *"abcde")
    assert requests.served == ["q", "a", "b"]
    await requests.end("b", "a")
    assert requests.served == ["q", "a", "b", "c", "d"]


async def test_the_keys_of_one_tenant_take_turns() -> None:
    requests = Requests(turns_of(running=1))
    await requests.send(QUIET, "q")
    await requests.send(NOISY, "n1", "n2", "n3")
    await requests.send(SIBLING, "s1", "s2")
    await requests.end("n1", "n2", "s1", "n3")
    assert requests.served == ["q", "n1", "n2", "s1", "n3", "s2"]


async def test_a_second_key_does_not_give_a_tenant_a_second_share() -> None:
    requests = Requests(turns_of(running=1))
    await requests.send(QUIET, "q")
    await requests.send(NOISY, "n")
    await requests.send(SIBLING, "s")
    assert requests.served == ["q", "n"]


async def test_a_key_over_its_budget_is_refused_and_no_other() -> None:
    turns = turns_of(2)
    requests = Requests(turns)
    await requests.send(NOISY, "a", "b")
    refusal = r"^too many requests: 2 of this API key are in progress \(setting requests_per_key\); retry later$"
    with pytest.raises(TooManyRequests, match=refusal):
        turns.try_enter(NOISY)
    with pytest.raises(TooManyRequests):
        turns.require_room(NOISY)
    await requests.send(SIBLING, "s")
    await requests.send(UNBOUND, "u")
    assert requests.served == ["a", "b", "s", "u"]


async def test_a_tenant_over_its_budget_is_refused_whatever_its_key() -> None:
    turns = turns_of(2, tenant_factor=1)
    requests = Requests(turns)
    await requests.send(NOISY, "a", "b")
    refusal = r"2 of this tenant's API keys are in progress \(settings requests_per_key and tenant_factor\)"
    with pytest.raises(TooManyRequests, match=refusal):
        turns.try_enter(SIBLING)
    await requests.end("a")
    assert turns.try_enter(SIBLING)
    assert turns.try_enter(QUIET)


async def test_waiting_requests_run_once_their_party_is_alone_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everwork.service.access.turns.ACTIVE_SECONDS", 0.0)
    requests = Requests(turns_of(running=1))
    await requests.send(QUIET, "q")
    await requests.send(NOISY, "a", "b", "c")
    assert requests.served == ["q", "a"]
    await requests.end("q")
    await until(lambda: requests.served == ["q", "a", "b", "c"])


async def test_a_party_runs_fewer_requests_while_the_event_loop_is_slow_and_more_while_it_is_not() -> None:
    seconds = itertools.count(0.0, 1.0)
    slow = Turns(Budget("requests", "requests_per_key", 100, 4, 1, 64), clock=lambda: next(seconds))
    await loaded(slow)
    assert slow.running_max == 1
    fast = Turns(Budget("requests", "requests_per_key", 100, 4, 1, 64), clock=lambda: 0.0)
    await loaded(fast)
    assert 16 < fast.running_max < 64


async def loaded(turns: Turns) -> None:
    """Two parties that are active for a while."""
    for _ in range(200):
        for principal in (QUIET, NOISY):
            async with turns.of(principal):
                await asyncio.sleep(0)


async def test_a_budget_whose_number_is_fixed_measures_nothing() -> None:
    measured: list[float] = []

    def clock() -> float:
        measured.append(0.0)
        return 0.0

    requests = Requests(Turns(Budget("searches", "searches_per_key", 100, 4, 1, 1, 2), clock))
    await requests.send(QUIET, "q")
    await requests.send(NOISY, "a", "b")
    await requests.end("q", "a", "b")
    assert requests.served == ["q", "a", "b"]
    assert measured == []


async def test_a_poll_with_jobs_is_never_refused() -> None:
    turns = turns_of(1)
    requests = Requests(turns)
    await requests.send(QUIET, "q")
    await requests.send(NOISY, "a")
    paced = asyncio.create_task(turns.pace(NOISY))
    await settled()
    assert not paced.done()
    await requests.end("a")
    assert paced.done()
    assert turns.held(NOISY) == 0


KINDS = ("enter", "enter", "enter", "pace", "cancel", "end", "fail")
ACTS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, 2)),
    min_size=20,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(ACTS)
def test_the_counts_return_to_zero_whatever_happens(acts: Sequence[tuple[str, int, int]]) -> None:
    asyncio.run(counts_return(acts))


async def counts_return(acts: Sequence[tuple[str, int, int]]) -> None:
    """Enter, end, fail, cancel and disconnect in any order; then end the rest: nobody may be left waiting."""
    turns = Turns(Budget("requests", "requests_per_key", 8, 1, 1, 3))
    principals = (QUIET, NOISY, SIBLING)
    running: list[tuple[asyncio.Task[None], asyncio.Future[None]]] = []

    async def serve(principal: Principal, ended: asyncio.Future[None]) -> None:
        async with turns.of(principal):
            await ended

    for act, which, whose in acts:
        if act in ("enter", "pace"):
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            work = serve(principals[whose], ended) if act == "enter" else turns.pace(principals[whose])
            running.append((asyncio.create_task(work), ended))
        elif running:
            finish(act, *running[which % len(running)])
        if which % 3:
            await asyncio.sleep(0)
    for task, ended in running:
        finish("end", task, ended)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(one for pair in running for one in pair), return_exceptions=True)
    assert [turns.held(principal) for principal in principals] == [0, 0, 0]
    assert [turns.running(principal) for principal in principals] == [0, 0, 0]


def finish(how: str, task: asyncio.Task[None], ended: asyncio.Future[None]) -> None:
    """End a request in one of the possible ways."""
    if how == "cancel":
        task.cancel()
    elif not ended.done():
        ended.set_exception(RuntimeError("the handler failed")) if how == "fail" else ended.set_result(None)


async def test_a_request_cancelled_while_it_waits_is_not_counted_and_the_next_one_runs() -> None:
    turns = turns_of(running=1)
    requests = Requests(turns)
    await requests.send(QUIET, "q")
    await requests.send(NOISY, "a", "b", "c")
    requests.tasks[2].cancel()
    await settled()
    assert turns.held(NOISY) == 2
    await requests.end("a", "c")
    assert requests.served == ["q", "a", "c"]
    assert (turns.held(NOISY), turns.running(NOISY)) == (0, 0)


async def test_a_request_cancelled_at_the_moment_of_its_turn_gives_it_to_the_next() -> None:
    turns = turns_of(running=1)
    requests = Requests(turns)
    await requests.send(QUIET, "q")
    assert turns.try_enter(NOISY)
    await requests.send(NOISY, "b", "c")
    turns.leave(NOISY)
    requests.tasks[1].cancel()
    await settled()
    assert requests.served == ["q", "c"]
    await requests.end("c")
    assert (turns.held(NOISY), turns.running(NOISY)) == (0, 0)


def contended(clock: Callable[[], float] = lambda: 0.0) -> Turns:
    """Turns that run several requests per party; with this clock, a large call lets others go first indefinitely."""
    return Turns(Budget("requests", "requests_per_key", 100, 4, 4, 4), clock)


async def test_a_large_call_gives_way_until_no_request_of_others_runs() -> None:
    turns = contended()
    requests = Requests(turns)
    await requests.send(NOISY, "large", "small")
    await requests.send(QUIET, "first", "second")
    waiting = asyncio.create_task(turns.give_way(NOISY))
    await requests.end("first")
    assert not waiting.done()
    await requests.end("second")
    await waiting
    await requests.end("large", "small")
    assert turns.running(NOISY) == 0


async def test_others_give_way_to_a_party_whose_large_call_is_only_sending_its_response() -> None:
    turns, is_sent = contended(), asyncio.Event()

    async def large() -> None:
        async with turns.of(NOISY):
            await turns.give_way(NOISY)
        await is_sent.wait()

    requests = Requests(turns)
    await requests.send(QUIET, "q")
    await requests.end("q")
    sending = asyncio.create_task(large())
    await settled()
    await requests.send(NOISY, "small")
    waiting = asyncio.create_task(turns.give_way(QUIET))
    await settled()
    assert not waiting.done()
    await requests.end("small")
    await waiting
    is_sent.set()
    await sending


async def test_a_large_call_does_not_give_way_for_long() -> None:
    turns = contended(itertools.count().__next__)
    requests = Requests(turns)
    await requests.send(NOISY, "large")
    await requests.send(QUIET, "endless")
    await turns.give_way(NOISY)
    await requests.end("large", "endless")


async def test_large_calls_share_the_time_and_one_that_is_alone_waits_for_nobody() -> None:
    turns = contended()
    done: list[str] = []

    async def large(principal: Principal) -> None:
        async with turns.of(principal):
            for _ in range(20):
                await turns.give_way(principal)
                done.append(principal.id)

    await large(NOISY)
    done.clear()
    await asyncio.gather(large(NOISY), large(QUIET))
    assert abs(done[:20].count("noisy") - 10) <= 2


async def test_what_is_notified_of_contention_is_also_notified_of_its_end() -> None:
    turns, notified = turns_of(), list[bool]()
    turns.on_contention = notified.append
    for principal in (NOISY, SIBLING, QUIET):
        turns.try_enter(principal)
    assert notified == [True]
    turns.leave(QUIET)
    for _ in range(2):
        turns._forget_idle()  # What a timer does every few seconds.
    assert notified == [True, False]


def test_threads_switch_more_often_while_several_tenants_are_active() -> None:
    switch_threads(True)
    often = sys.getswitchinterval()
    switch_threads(False)
    assert often < sys.getswitchinterval() == pytest.approx(0.005)
