"""What is said of processes: how long an engine that is away is waited for."""

from __future__ import annotations

from functools import partial
from itertools import islice

import pytest
from pydantic import ValidationError

from everwork import AbstractWorker, Middleware, Process, Reconnect, WorkerSettings
from everwork.exceptions import Retry
from everwork.testing.injection import FailEveryNth


class Quiet(AbstractWorker):
    """A worker that does nothing."""

    @classmethod
    def _get_settings(cls) -> WorkerSettings:
        return WorkerSettings(title="quiet")

    async def __call__(self) -> None: ...


def test_delays_grow_to_the_last_one_and_stay_there() -> None:
    pauses = Reconnect(delays=(0.1, 0.5), jitter=0).pauses()
    assert list(islice(pauses, 4)) == [0.1, 0.5, 0.5, 0.5]


def test_giving_up_goes_by_the_clock_not_by_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("everwork.manager.process.time.monotonic", lambda: now[0])
    pauses = Reconnect(delays=(0.1,), give_up_after=5).pauses()
    assert next(pauses, None) is not None
    now[0] += 5.0  # An attempt that was never answered.
    assert next(pauses, None) is None


def test_no_delay_at_all_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="delays"):
        Reconnect(delays=())


def test_a_class_that_is_no_middleware_is_refused_before_anything_starts() -> None:
    with pytest.raises(
        ValidationError, match="must be subclasses of Middleware or functions that return an instance, not"
    ):
        Process(workers=[Quiet], middleware=[int])  # type: ignore[list-item]
    assert Process(workers=[Quiet], middleware=[Middleware, partial(FailEveryNth, 5)]).middleware


def test_a_number_alone_is_the_delay_of_a_retry() -> None:
    assert (Retry(5).delay, Retry(5).detail) == (5.0, "")
    assert (Retry("later").delay, Retry("later").detail) == (None, "later")
