"""The status of a store: its words and its color come from one value, and change at these boundaries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from everwork.core.job import NewJob
from everwork.core.measures import measured
from everwork.server.http.ui.status import (
    ATTENTION,
    DEGRADED,
    ELEVATED,
    FAILING,
    HEALTHY,
    IDLE,
    LATE_MS,
    LEVELS,
    NO_WORKERS,
    PAUSED,
    STALLED,
    WAITING,
    WORKING,
    Facts,
    Level,
    level_of,
    status_of,
)
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry
from everwork.service.fleet.fleet import Fleet
from everwork.service.monitor.minutes import Span, Work
from tests.server.http.ui.timed_dashboard import timed_dashboard

CSS = Path(__file__).parents[4] / "src/everwork/server/http/ui/static/app.css"


def span(seconds: float = 240.0, **work: int) -> Span:
    """Attempts that finished in some seconds."""
    return Span(seconds, Work(**work), measured({}.items()))


NONE = span()


@pytest.mark.parametrize(
    ("completed", "failed", "level"),
    [
        (1, 0, HEALTHY),
        (91, 9, HEALTHY),
        (90, 10, ELEVATED),
        (51, 49, ELEVATED),
        (50, 50, DEGRADED),
        (1, 99, DEGRADED),
        (0, 1, FAILING),
    ],
)
def test_the_share_of_failed_attempts_decides_the_level(completed: int, failed: int, level: Level) -> None:
    assert level_of(Work(completed=completed, failed=failed)) is level
    assert level_of(Work(completed=completed, retried=failed)) is level


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        (Facts(span(completed=120), running=1), HEALTHY, "Healthy: 30 completed per minute in the last 4 minutes"),
        (Facts(span(completed=720)), HEALTHY, "Healthy: 3 completed per second in the last 4 minutes"),
        (Facts(span(20, completed=3)), HEALTHY, "Healthy: 3 completed in the last 20 s"),
        (Facts(span(2, completed=3)), HEALTHY, "Healthy: 3 completed in the last few seconds"),
        (
            Facts(span(completed=999, retried=1)),
            HEALTHY,
            "Healthy: 4.2 completed per second in the last 4 minutes, less than 1 % of attempts failed",
        ),
        (
            Facts(span(completed=120, retried=40)),
            ELEVATED,
            "Elevated failure rate: 25 % of attempts failed in the last 4 minutes (30 completed per minute)",
        ),
        (
            Facts(span(completed=120, failed=2280)),
            DEGRADED,
            "Degraded: 95 % of attempts failed in the last 4 minutes (30 completed per minute)",
        ),
        (
            Facts(span(20, completed=1, failed=2)),
            DEGRADED,
            "Degraded: 2 of 3 attempts failed in the last 20 s (1 completed)",
        ),
        (Facts(span(failed=1)), FAILING, "Failing: the only attempt failed in the last 4 minutes"),
        (Facts(span(failed=4)), FAILING, "Failing: all 4 attempts failed in the last 4 minutes"),
        (Facts(NONE), IDLE, "Idle: no jobs yet"),
        (Facts(NONE, jobs=3), IDLE, "Idle: no pending jobs"),
        (Facts(NONE, jobs=3, pending=3), IDLE, "Idle: no jobs are due; all pending jobs are scheduled for later"),
        (Facts(NONE, running=1), WORKING, "Working: 1 job running, none finished in the last minutes"),
        (Facts(NONE, running=2, due_ms=LATE_MS), WORKING, "Working: 2 jobs running, none finished in the last minutes"),
        (Facts(NONE, pending=1, due_ms=LATE_MS), WAITING, "Waiting: the oldest due job has waited 1 min"),
        (Facts(NONE, pending=1, has_paused=True), PAUSED, "Paused: all due jobs belong to paused types"),
        (
            Facts(NONE, pending=1, due_ms=LATE_MS + 1, quiet="7 min"),
            STALLED,
            "Stalled: no attempt has finished for 7 min; the oldest due job has waited 1 min",
        ),
        (
            Facts(NONE, pending=1, due_ms=13_900, has_workers=False),
            NO_WORKERS,
            "No workers running: the oldest due job has waited 13 s",
        ),
        (
            Facts(NONE, pending=1, has_workers=False),
            IDLE,
            "Idle: no jobs are due; all pending jobs are scheduled for later",
        ),
    ],
)
def test_each_situation_has_its_sentence(facts: Facts, level: Level, text: str) -> None:
    status = status_of(facts)
    assert (status.level, status.text, status.tone) == (level, text, level.tone)


@pytest.mark.parametrize("facts", [Facts(NONE), Facts(span(completed=120)), Facts(NONE, running=1)])
def test_nothing_looks_good_while_something_else_is_wrong(facts: Facts) -> None:
    before, after = status_of(facts), status_of(facts._replace(has_problems=True))
    assert (after.level, after.details) == (ATTENTION, before.details)


def test_a_worse_status_stays_when_something_else_is_wrong() -> None:
    assert status_of(Facts(span(failed=4), has_problems=True)).level is FAILING


def test_the_words_of_a_level_are_unique_so_that_they_never_have_two_colors() -> None:
    assert len({level.words for level in LEVELS}) == len(LEVELS)
    assert {level.tone for level in LEVELS} == {"good", "calm", "warn", "bad"}


@pytest.mark.parametrize("tone", ["good", "warn", "bad"])
def test_each_tone_has_a_color_and_a_calm_one_is_gray(tone: str) -> None:
    css = CSS.read_text()
    assert f".glance-{tone} {{ --tone:" in css
    assert ".glance-calm" not in css


async def test_the_page_has_the_color_of_its_words(tmp_path: Path) -> None:
    async with timed_dashboard(tmp_path) as world:
        seen = [shown(await world.page("/ui"))]
        await world.engine.create([NewJob("mail")])
        seen.append(shown(await world.page("/ui")))
        await Fleet(world.engine).beat(ManagerEntry(name="m1"), [ProcessEntry(name="p1")])
        seen.append(shown(await world.page("/ui")))
        await world.minutes_later(2)
        await Fleet(world.engine).beat(ManagerEntry(name="m1"), [ProcessEntry(name="p1")])
        seen.append(shown(await world.page("/ui")))
        await world.engine.pause("mail", True)
        seen.append(shown(await world.page("/ui")))
        await world.work("sms", "busy", None, None)
        seen.append(shown(await world.page("/ui")))
        assert seen == [
            ("calm", "Idle"),
            ("bad", "No workers running"),
            ("calm", "Waiting"),
            ("bad", "Stalled"),
            ("warn", "Paused"),
            ("warn", "Elevated failure rate"),
        ]


def shown(page: str) -> tuple[str, str]:
    """The tone of the sentence, and its first words."""
    [found] = re.findall(r'class="card glance glance-(\w+)".*?<a href="[^"]+">([^<:]+):', page, re.DOTALL)
    return str(found[0]), str(found[1])
