"""How the dashboard's templates write texts."""

from __future__ import annotations

import pytest

from everwork.server.http.ui.render import sentence


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("no page at this address", "No page at this address."),
        ("name: is required", "name: is required."),
        ("jobs[3].type: is required", "jobs[3].type: is required."),
        ("Are you sure?", "Are you sure?"),
    ],
)
def test_an_error_is_shown_as_a_sentence_but_the_name_of_a_field_stays(text: str, shown: str) -> None:
    assert sentence(text) == shown
