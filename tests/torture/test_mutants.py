"""The checker proves itself: every seeded mutant is caught, and the same story on a sound engine is clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import mutants
from tests.torture.scenarios import STORIES, tell, violations


@pytest.mark.parametrize("mutant", mutants.NAMES)
def test_a_mutant_is_caught_by_the_promise_that_it_breaks(mutant: str, tmp_path: Path) -> None:
    _, expected = STORIES[mutant]
    assert violations(tell(mutant, tmp_path / "mutated")) & expected


@pytest.mark.parametrize("mutant", mutants.NAMES)
def test_the_story_of_a_mutant_is_clean_on_a_sound_engine(mutant: str, tmp_path: Path) -> None:
    verdict = tell(f"sound:{mutant}", tmp_path / "sound")
    assert violations(verdict) == set(), dict(verdict.shown)
