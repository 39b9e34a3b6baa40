"""The page of defaults says what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from everwork import CircuitBreaker, Everwork, Process, RetryPolicy, Trigger, TypePolicy, WorkerSettings
from everwork.client import Client
from everwork.core import limits
from everwork.core.retention import KEEP_MS
from everwork.core.states import State

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "defaults.md").read_text("utf-8")
DAY_MS = 86_400_000


def default_of(function: Any, name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def cells(row: str) -> list[str]:
    """What stands behind the name of a row (of all rows of that name), without the settings in brackets."""
    found = re.findall(rf"^\| {re.escape(row)} \|(.+)\|$", PAGE, re.MULTILINE)
    return [cell.partition(" (")[0].strip() for one in found for cell in one.split(" | ")]


def catch_up(is_catchup: bool) -> str:
    return "caught up" if is_catchup else "not caught up"


FUNCTION = {name: default_of(Everwork.job, name) for name in ("retry", "timeout", "concurrency", "is_catchup")}
CLASS = WorkerSettings(title="a worker")
ATTEMPTS = str(limits.ATTEMPTS_DEFAULT)
DELAYS = f"{', '.join(f'{RetryPolicy().backoff_ms(n) / 1000:g}' for n in range(1, limits.ATTEMPTS_DEFAULT))} s"
LEASES = {limits.LEASE_MS_DEFAULT / 1000, *(default_of(one, "lease") for one in (Client.work, Client.activate))}
"""They are one."""
BREAKER, POLICY = CircuitBreaker(), TypePolicy()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            "attempts when a handler raises or times out",
            [str(FUNCTION["retry"].max_attempts), "1" if CLASS.retry is None else "retried", ATTEMPTS],
        ),
        ("attempts when a process dies or its lease expires", [ATTEMPTS] * 3),
        ("delay before a retry", [DELAYS] * 3),
        ("timeout of an attempt", [f"{FUNCTION['timeout']:g} s", f"{CLASS.execution_timeout:g} s", "none"]),
        ("lease, extended while a handler runs", [f"{lease:g} s" for lease in LEASES] * 3),
        (
            "concurrency in one process",
            [
                str(FUNCTION["concurrency"]),
                str(CLASS.concurrency),
                f"{default_of(Client.work, 'concurrency')} per type",
            ],
        ),
        (
            "time to finish when stopped",
            [
                f"{default_of(Everwork.run, 'shutdown_timeout'):g} s",
                f"{Process.model_fields['shutdown_timeout'].default:g} s once cancelled",
                "until the handlers finish",
            ],
        ),
        (
            "missed runs of a schedule",
            [catch_up(FUNCTION["is_catchup"]), catch_up(Trigger.model_fields["is_catchup"].default), "-"],
        ),
        ("circuit breaker", [f"none; `CircuitBreaker()`: {BREAKER.failures} failures, {BREAKER.seconds:g} s"]),
        ("completed and cancelled jobs", [f"{KEEP_MS[State.COMPLETED] // DAY_MS} days"]),
        ("dead letters", ["stay until they are requeued", f"{KEEP_MS[State.FAILED] // DAY_MS} days"]),
        ("statistics", [f"{limits.STATISTICS_KEEP_HOURS // 24} days"]),
        ("audit log", [f"{limits.AUDIT_KEEP_MS // DAY_MS} days"]),
        ("history of a job", [f"its last {limits.HISTORY_ENTRIES_MAX} entries"]),
        ("variables or result", [f"at most {limits.PAYLOAD_BYTES_MAX // 2**20} MiB of JSON"]),
        ("headers", [f"at most {limits.HEADERS_BYTES_MAX // 2**10} KiB"]),
        ("priority", [f"0, from {limits.PRIORITY_MIN} to {limits.PRIORITY_MAX}; higher first"]),
        ("attempts", [f"at most {limits.ATTEMPTS_MAX}"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_table_of_defaults_is_what_the_code_does(row: str, expected: list[str]) -> None:
    assert cells(row) == expected


def test_a_type_has_no_limits_unless_a_policy_sets_them() -> None:
    assert (POLICY.breaker, POLICY.is_limited, POLICY.strict, POLICY.failed_job_retry_hours) == (
        None,
        False,
        False,
        None,
    )
    assert KEEP_MS[State.COMPLETED] == KEEP_MS[State.CANCELLED]
