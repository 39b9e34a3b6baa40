"""What a program sees of the log: lines for people, or objects for machines, whole and without passwords."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everwork import Everwork, logs
from tests.app.waiting import run_one

LINES = 60
WRITERS = 3

LOGGED = """
import logging, structlog
from everwork.logs import configure, get_logger

configure({format!r}, level="info")
log = get_logger("everwork").bind(process="p1", worker="a1")
log.info("the attempt is over", key=42, attempt=3, kind="complete", time="mine")
log.debug("too much")
try:
    raise RuntimeError("cannot reach redis://user:hunter2@host:6379/0?password=hunter2")
except RuntimeError:
    log.exception("the attempt failed", url="postgresql://u:hunter2@h/db", number=2**70, odd="\\ud800", what=object)
with structlog.contextvars.bound_contextvars(key=7):
    logging.getLogger("mine").warning("from %s", "a handler")
    structlog.get_logger("mine").warning("from structlog", order=5)
"""


def _stderr_of(program: str) -> str:
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == ""
    return answer.stderr


def test_json_has_one_object_per_line_with_every_fact() -> None:
    done, failed, foreign, own = (json.loads(line) for line in _stderr_of(LOGGED.format(format="json")).splitlines())

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", done.pop("time"))
    assert done == {
        "level": "info",
        "logger": "everwork",
        "event": "the attempt is over",
        "process": "p1",
        "worker": "a1",
        "key": 42,
        "attempt": 3,
        "kind": "complete",
        "time_": "mine",
    }
    assert (failed["level"], failed["worker"], failed["number"]) == ("error", "a1", str(2**70))
    assert failed["exception"].startswith("Traceback (most recent call last):")
    assert failed["exception"].endswith("RuntimeError: cannot reach redis://user:***@host:6379/0?password=***")
    assert (foreign["event"], foreign["logger"], foreign["key"]) == ("from a handler", "mine", 7)
    assert (own["event"], own["order"], own["key"]) == ("from structlog", 5, 7)


def test_the_console_shows_time_level_and_facts() -> None:
    written = _stderr_of(LOGGED.format(format="console"))

    first = written.splitlines()[0]
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO     everwork: the attempt is over  "
        r"process='p1' worker='a1' key=42 attempt=3 kind='complete' time='mine'",
        first,
    )
    assert "RuntimeError: cannot reach redis://user:***@host" in written
    assert "WARNING  mine: from a handler  key=7" in written
    assert "hunter2" not in written
    assert "too much" not in written


def test_a_program_with_handlers_of_its_own_is_left_alone_unless_it_asks() -> None:
    written = _stderr_of(
        "import logging, sys\n"
        "from everwork.logs import configure, get_logger\n"
        "logging.basicConfig(format='mine: %(message)s', stream=sys.stderr, level='INFO')\n"
        "assert not configure('json')\n"
        "get_logger('everwork').info('hello', key=1)\n"
        "assert configure('json', force=True)\n"
        "get_logger('everwork').info('hello', key=2)\n"
        "assert configure('console')\n"
        "get_logger('everwork').info('hello', key=3)\n"
    )

    own, asked, again = written.splitlines()
    assert own == "mine: hello: key=1"
    assert json.loads(asked)["key"] == 2
    assert again.endswith("everwork: hello  key=3")


def test_lines_of_several_processes_are_not_torn() -> None:
    child = (
        "from everwork.logs import configure, get_logger\n"
        "configure('json')\n"
        "long = {name: name * 15_000 for name in 'abcd'}  # Far more than a pipe takes in one piece.\n"
        f"for n in range({LINES}): get_logger('everwork').info('x', n=n, **long)\n"
    )
    program = (
        "import subprocess, sys\n"
        f"children = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range({WRITERS})]\n"
        f"assert [child.wait() for child in children] == [0] * {WRITERS}\n"
    )

    numbers = [json.loads(line)["n"] for line in _stderr_of(program).splitlines()]

    assert sorted(numbers) == sorted([*range(LINES)] * WRITERS)


def test_long_texts_are_cut_and_take_no_long_time() -> None:
    written = _stderr_of(
        "from everwork.logs import configure, get_logger\n"
        "configure('json')\n"
        "try: raise ValueError('://' + '?' * 2_000_000 + 'the end')\n"
        "except ValueError: get_logger('everwork').exception('x', fact=['y' * 1_000_000], odd='z' * 1_000_000)\n"
    )

    said = json.loads(written)
    assert len(written) < 60_000
    assert said["exception"].startswith("Traceback (most recent call last):")
    assert said["exception"].endswith("???the end")
    assert "about 984,000 characters left out" in said["odd"]
    assert said["fact"].startswith('["yyy')


@pytest.mark.parametrize(
    ("told", "written"),
    [
        ("postgresql://u:hun/ter?#2@h/db", "postgresql://u:***@h/db"),
        ("no redis://:hun ter2@h:6379 here", "no redis://:***@h:6379 here"),
        ("at redis://h/0?password='hun ter2' now", "at redis://h/0?password=*** now"),
        ("host=h password=hunter2 dbname=d", "host=h password=*** dbname=d"),
        ("redis://h:6379 has refused bob@example.com", "redis://h:6379 has refused bob@example.com"),
        ("all tests passed=3 of http://h:80/x", "all tests passed=3 of http://h:80/x"),
    ],
)
def test_passwords_are_hidden_whatever_they_consist_of_and_nothing_else(told: str, written: str) -> None:
    handler = logs._Stderr(logs._console)
    record = logging.LogRecord("everwork", logging.INFO, "", 0, told, None, None)

    assert handler.format(record).endswith(f"everwork: {written}")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"format": "xml"}, "format: must be one of console, json, not 'xml'"),
        ({"level": "loud"}, "level: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not 'loud'"),
        ({"level": 7}, "level: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL, not 7"),
    ],
)
def test_a_wrong_setting_is_told_by_name(settings: dict[str, Any], told: str) -> None:
    handlers = list(logging.getLogger().handlers)

    with pytest.raises(ValueError, match=told):
        logs.configure(**settings)

    assert logging.getLogger().handlers == handlers


async def test_what_a_handler_logs_carries_its_job_also_from_a_thread(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(logs._facts(record))

    app, mine, listening = Everwork(f"sqlite:///{tmp_path / 'jobs.db'}"), logging.getLogger("mine"), Listening()

    @app.job("quick")
    async def quick() -> None:
        mine.warning("from a coroutine")

    @app.job("threaded")
    def threaded() -> None:
        mine.warning("from a thread")

    mine.addHandler(listening)
    try:
        jobs = [await run_one(app, type) for type in ("quick", "threaded")]
        mine.warning("from nobody's job")
    finally:
        mine.removeHandler(listening)
        await app.close()
    assert said == [*({"worker": job.type, "key": job.key, "attempt": 1, "type": job.type} for job in jobs), {}]
