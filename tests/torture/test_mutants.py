"""The checker proves itself: every seeded mutant is caught, and the same story on a sound engine is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores import ENGINES, EVERYTHING, url_of
from tests.torture import mutants
from tests.torture.scenarios import STORIES, tell, violations

PAIRS = [
    (engine, mutant)
    for engine in ENGINES
    # What stands above the engines is told on one: the checker sees only what is called and what remains.
    for mutant in (mutants.names(engine) if EVERYTHING or engine == ENGINES[0] else mutants.own_names(engine))
]


@pytest.mark.parametrize(("engine", "mutant"), PAIRS)
def test_a_mutant_is_caught_by_the_promise_that_it_breaks(engine: str, mutant: str, tmp_path: Path) -> None:
    _, expected = STORIES[mutant]
    assert tell(mutant, tmp_path / "mutated", url_of(engine, tmp_path)).found.keys() & expected


# That an engine is sound is shown by the torture on each; here, that the story itself breaks no promise.
@pytest.mark.parametrize(
    ("engine", "mutant"), PAIRS if EVERYTHING else [pair for pair in PAIRS if pair[0] == ENGINES[0]]
)
def test_the_story_of_a_mutant_is_clean_on_a_sound_engine(engine: str, mutant: str, tmp_path: Path) -> None:
    verdict = tell(f"sound:{mutant}", tmp_path / "sound", url_of(engine, tmp_path))
    assert violations(verdict) == set(), dict(verdict.shown)
