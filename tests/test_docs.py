"""The documentation is under test: its links lead somewhere, its examples parse, its commands exist."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

from everwork.codec.fields import JOB, Field
from everwork.core.classify import BUILT_IN, Strategy, delay_ms
from everwork.core.job import Kind
from everwork.core.policy import POLICY_FIELDS
from everwork.core.retry import DEFAULT_POLICY
from everwork.core.states import State
from everwork.testing import rehearse
from tests.views import COLUMNS
from tools import draw_rules, draw_states, state_picture

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def test_every_relative_link_leads_to_a_file() -> None:
    assert [f"{page.name}: {link}" for page, link in _links() if not (page.parent / link).exists()] == []


def test_the_picture_of_the_states_is_drawn_from_their_table() -> None:
    page = draw_states.PAGE.read_text("utf-8")
    assert "pending --> processing: activate" in page
    assert draw_states.drawn(page) == page


def test_the_picture_of_the_states_as_a_file_is_drawn_from_their_table() -> None:
    assert state_picture.PICTURE.read_text("utf-8") == state_picture.picture()


def test_who_may_call_what_is_written_from_the_rules_of_the_verbs() -> None:
    page = draw_rules.PAGE.read_text("utf-8")
    assert "| `cancel` | `jobs` | the job must belong to its tenants | `jobs.cancel`" in page
    assert draw_rules.drawn(page) == page


def test_the_delays_on_the_page_about_failures_are_the_real_ones() -> None:
    page = draw_states.PAGE.read_text("utf-8")
    waits = [DEFAULT_POLICY.backoff_ms(attempts, key=1, attempt=1) // 1000 for attempts in range(1, 5)]
    assert f"| {' | '.join(f'{wait} s' for wait in waits)} | failed |" in page
    sorts = [(strategy, delay_ms(strategy, 1)) for strategy in Strategy]
    rows = [(strategy.value, f"{wait // 1000}" if wait else "never") for strategy, wait in sorts]
    assert [row for row in rows if not re.search(rf"^\| `{row[0]}` \| {row[1]}\b", page, re.MULTILINE)] == []
    texts = [rule.text or rule.exception or "" for rule in BUILT_IN]
    assert [text for text in texts if text not in page] == []


def test_every_field_of_a_policy_is_on_the_page_about_failures() -> None:
    page = draw_states.PAGE.read_text("utf-8")
    assert [name for name in POLICY_FIELDS if f"`{name}`" not in page] == []


def test_the_table_of_a_jobs_fields_is_what_they_are_declared_as() -> None:
    page = (
        (ROOT / "docs" / "reference" / "rest.md")
        .read_text("utf-8")
        .partition("### The fields of a job")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", page, re.MULTILINE)
    assert rows == [(field.json, _value(field)) for field in JOB]


def test_every_column_of_the_public_views_is_on_the_page_about_sql() -> None:
    table = (ROOT / "docs" / "how-to" / "sql.md").read_text("utf-8").partition("## Columns")[2].partition("\n## ")[0]
    named = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(COLUMNS)


def test_the_quick_start_of_the_front_page_prints_something_each_time(tmp_path: Path) -> None:
    front = (ROOT / "README.md").read_text().partition("## Quick start")[2]
    (tmp_path / "shop.py").write_text(re.findall(r"^```python\n(.*?)^```", front, re.DOTALL | re.MULTILINE)[0])
    for key in (1, 2):
        command = [sys.executable, "-u", "shop.py"]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as program:
            try:
                assert program.stdout is not None
                assert [program.stdout.readline() for _ in range(2)] == [
                    f"created job {key}\n",
                    "Welcome -> ada@example.org\n",
                ]
                program.send_signal(signal.SIGINT)
                assert program.wait(timeout=60) == 0
            finally:
                program.kill()


def test_the_page_about_python_shows_how_to_look_at_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "how-to" / "python.md").read_text()
    names: dict[str, Any] = {"__name__": "docs"}
    for heading in ("## Job functions", "## Inspecting and managing jobs"):
        example = re.findall(r"^```python\n(.*?)^```", page.partition(heading)[2], re.DOTALL | re.MULTILINE)[0]
        exec(compile(example, "python.md", "exec", dont_inherit=True), names)
    with rehearse(names["app"]) as stage:
        handle = names["build"].sync.enqueue("2026-10")
        stage.drain()
        asyncio.run(names["look"](handle))
    assert "completed 1 {'month': '2026-10'} {'pages': 12, 'attempt': 1}" in capsys.readouterr().out


GUIDES = sorted(ROOT.glob("docs/how-to/from-*.md"))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_program_of_a_guide_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `main` enqueues, and a morning of the schedule, on the stage."""
    [program] = re.findall(r"^### After\n+```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": page.stem}
    exec(compile(program, page.name, "exec", dont_inherit=True), names)  # Its annotations are not texts.
    with rehearse(names["app"]) as stage:
        if iscoroutinefunction(names["main"]):
            asyncio.run(names["main"]())
        else:
            names["main"]()
        runs = stage.drain(days=4)
    assert {run.outcome for run in runs} == {"complete"}
    assert [run.type for run in runs].count("email-send") == 2
    printed = capsys.readouterr().out
    assert [text in printed for text in ("Welcome -> ada", "How is it going? -> ada", "report of 1 day(s)")] == [
        True
    ] * 3


def test_every_guide_says_what_differs_and_what_is_missing_and_is_on_the_front_page() -> None:
    assert len(GUIDES) == 5
    front = (ROOT / "README.md").read_text()
    for page in GUIDES:
        headings = re.findall(r"^##+ (.+)$", page.read_text(), re.MULTILINE)
        assert {"API mapping", "Not supported", "Before", "After"} <= set(headings), page.name
        assert f"(docs/how-to/{page.name})" in front


def test_the_front_page_is_short_and_links_every_part_of_the_documentation() -> None:
    front = (ROOT / "README.md").read_text()
    assert len(front.splitlines()) <= 120
    pages = ("tutorial/first-job.md", "how-to/python.md", "reference/features.md", "explanation/comparison.md")
    assert [page for page in pages if f"(docs/{page})" not in front] == []


def _value(field: Field) -> str:
    """What the table says of a field's values in JSON."""
    of_kind = {Kind.KEY: "text", Kind.INSTANT: "time", Kind.JSON: "JSON", Kind.GROUP: "text or null"}
    of_type = {State: "state", bool: "true or false", int: "number", str: "text"}
    value = of_kind[field.kind] if field.kind else of_type[field.type]
    return f"{value} or null" if field.is_optional else value


TERMS = """
    engine, durability, dedupe, delay, priority, tenant, limit key, group, expiry, retry, backoff, dead letter, requeue,
    fencing, attempt, worker, timeout, heartbeat, pause, explain, long poll, worker stream, api key, permission,
    audit log, process,
    manager, event, trigger, catch-up, policy, classification, breaker, concurrency, rate, retention,
    tick, middleware, drain, fleet
"""
"""What the feature tables name."""


def test_every_term_of_the_feature_tables_is_in_the_glossary() -> None:
    table = (ROOT / "docs" / "reference" / "features.md").read_text().partition("\n## Not included")[0]
    entries = " ".join(re.findall(r"\*\*(.+?)\*\*", (ROOT / "docs" / "reference" / "glossary.md").read_text()))
    for term in TERMS.split(","):
        assert term.strip() in _singular(table), f"no feature names {term.strip()}"
        assert term.strip() in _singular(entries), f"the glossary lacks {term.strip()}"


def _singular(text: str) -> str:
    return text.lower().replace("ies", "y")


def _links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)#\s]+)", prose):
            if "://" not in link and not link.startswith("mailto:"):
                yield page, link
