"""What people, editors and type checkers see of the blocking facades and of the verbs behind a client.

mypy checks the functions that nobody calls: where it finds no error although one is named, that is an error, too.
"""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from everwork import Everwork
from everwork.app.sync import SyncEverwork
from everwork.client import ActiveJob, Client, SyncClient
from everwork.codec.job_values import Job, JobPage
from everwork.core.job import HistoryEntry
from everwork.core.leasing import Created, Judged
from everwork.core.queries import BulkChange, Explanation, JobFilter, Page, Stats
from everwork.core.states import State

if TYPE_CHECKING:
    from everwork.client.transport import Verbs

FACADES: list[tuple[type, type]] = [(Client, SyncClient), (Everwork, SyncEverwork)]


def _derived() -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    for kind, facade in FACADES:
        for name, call in vars(facade).items():
            if hasattr(call, "__wrapped__"):
                yield getattr(kind, name), call


@pytest.mark.parametrize(("method", "call"), list(_derived()), ids=lambda one: one.__qualname__)
def test_a_blocking_verb_is_shown_like_the_coroutine_that_it_runs(
    method: Callable[..., Any], call: Callable[..., Any]
) -> None:
    assert inspect.signature(call) == inspect.signature(method)
    assert inspect.getdoc(call) == inspect.getdoc(method)
    assert call.__qualname__ == f"Sync{method.__qualname__}"
    assert not inspect.iscoroutinefunction(call)
    assert pydoc.render_doc(call).splitlines()[2] == pydoc.render_doc(method).splitlines()[2].removeprefix("async ")


def _verbs(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}


def test_a_blocking_client_has_every_verb_of_the_other() -> None:
    assert _verbs(Client) - _verbs(SyncClient) == {"stream"}
    assert _verbs(SyncClient) - _verbs(Client) == {"stop"}  # Where `work` takes an event.


def test_a_blocking_application_has_every_coroutine_of_the_other() -> None:
    coroutines = {name for name in _verbs(Everwork) if inspect.iscoroutinefunction(getattr(Everwork, name))}
    assert coroutines - _verbs(SyncEverwork) == set()


def types_of_a_blocking_client(client: SyncClient, job: ActiveJob) -> None:
    assert_type(client.create("a"), Created)
    assert_type(client.create("a", {"n": 1}, priority=1), Created)
    assert_type(client.create_many([("a", {})]), list[Created])
    assert_type(client.activate("a", limit=5, wait=1.0), list[ActiveJob])
    assert_type(client.settle([]), list[Judged])
    assert_type(client.cancel(1), State)
    assert_type(client.cancel("1", reason="why"), State)
    assert_type(client.requeue_matching(type="a"), BulkChange)
    assert_type(client.set_retries(1, 5), int)
    assert_type(client.get(1), Job)
    assert_type(client.history(1), list[HistoryEntry])
    assert_type(client.explain(1), Explanation)
    assert_type(client.stats(), Stats)
    assert_type(client.page(limit=5), JobPage)
    assert_type(client.list(type="a"), Iterator[Job])
    client.fail(job, "boom", backoff=3.5, final=True)
    client.fail(job)  # type: ignore[call-arg]
    client.cancel()  # type: ignore[call-arg]
    client.cancel(1.5)  # type: ignore[arg-type]
    client.cancel(1, because="why")  # type: ignore[call-arg]
    client.reschedule(1, None)  # type: ignore[call-arg]
    client.cancle(1)  # type: ignore[attr-defined]


def types_of_a_blocking_application(app: Everwork) -> None:
    assert_type(app.sync.get(1), Job)
    assert_type(app.sync.history(1), list[HistoryEntry])
    assert_type(app.sync.explain(1), Explanation)
    app.sync.cancel(1, reason="why")
    app.sync.cancel("1")  # type: ignore[arg-type]
    app.sync.result(1, 5, 6)  # type: ignore[call-arg]


async def types_of_the_verbs_behind_a_client(jobs: Verbs) -> None:
    """A verb that only one side has is refused, and so are parameters that do not fit both."""
    assert_type(await jobs.cancel(1, "why"), State)
    assert_type(await jobs.find(JobFilter(), 10), Page)
    await jobs.get_many([1])  # type: ignore[union-attr]
    await jobs.cancel("1")  # type: ignore[arg-type]
    await jobs.reschedule(1, 5)  # type: ignore[call-arg]
