"""Every error of a worker is logged, with what is needed to find its process, worker and call."""

from __future__ import annotations

import json
from typing import Any

from everwork import State
from tests.manager.conftest import Start
from tests.manager.running import Manager, Outside


def _lines(manager: Manager, key: int) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in manager.log().splitlines() if line.startswith("{")]
    return [line for line in found if line.get("key") == key]


async def test_an_error_is_logged_with_process_manager_worker_call_and_traceback(
    start: Start, outside: Outside
) -> None:
    manager = await start("Patient", log_format="json")
    key = await outside.push("patient", how="raise")
    await outside.all_are(State.FAILED, [key])
    await manager.logged("gave up")
    retried, again, final = _lines(manager, key)
    assert (retried["level"], retried["event"]) == ("warning", "attempt 1 of 3 failed, retrying in 0 s")
    assert (again["level"], again["event"]) == ("warning", "attempt 2 of 3 failed, retrying in 0 s")
    assert (final["level"], final["event"]) == ("error", "gave up after 3 attempts")
    [process] = {line["process"] for line in (retried, again, final)}
    assert process == (await outside.job(key)).worker
    for line in (retried, again, final):
        assert (line["manager"], line["title"], line["error"]) == ("test", "patient", "ValueError: again")
        assert len(line["worker"]) == 16
        assert line["time"].endswith("Z")
        assert line["exception"].endswith("ValueError: again")
    first = str((await outside.ends(key)).traceback).split("\n")
    assert (first[1].endswith(", in __call__"), first[-1]) == (True, "ValueError: again")


async def test_every_line_of_a_worker_process_names_it_and_its_manager(start: Start, outside: Outside) -> None:
    manager = await start("Writing", log_format="json", log_level="DEBUG")
    key = await outside.push("writing")
    await outside.all_are(State.COMPLETED, [key])
    await manager.logged("attempt completed")
    by_event = {line["event"]: line for line in _lines(manager, key)}
    own, done = by_event["from the handler"], by_event["attempt completed"]
    assert (own["manager"], own["process"], own["worker"], own["title"], own["attempt"]) == (
        "test", done["process"], done["worker"], "writing", 1,
    )  # fmt: skip
    assert done["level"] == "debug"
    outside_of_calls = [json.loads(line) for line in manager.log().splitlines() if "from a thread of mine" in line]
    assert [(line["manager"], line["process"]) for line in outside_of_calls] == [("test", done["process"])]


async def test_a_rejection_and_a_retry_without_a_reason_of_their_own_name_the_error_behind_them(
    start: Start, outside: Outside
) -> None:
    manager = await start("Handling", log_format="json")
    rejected, retried = [await outside.push("handling", how=how) for how in ("reject", "retry")]
    await outside.all_are(State.FAILED, [rejected, retried])
    await manager.logged("gave up")
    [line] = _lines(manager, rejected)
    assert (line["level"], line["event"]) == ("warning", "job rejected, it will not be retried")
    assert line["error"] == (await outside.job(rejected)).last_error == "KeyError: 'no such order'"
    *_, line = _lines(manager, retried)
    assert (line["level"], line["event"]) == ("error", "gave up after 2 attempts")
    assert line["error"] == (await outside.job(retried)).last_error == "ConnectionError: the shop is closed"
    assert "ConnectionError: the shop is closed" in line["exception"]
