"""Generates the state diagram in `docs/how-to/failures.md` from the transition table.

python -m tools.draw_states
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from everwork.core.states import TRANSITIONS, State

PAGE: Final = Path(__file__).parents[1] / "docs" / "how-to" / "failures.md"
BEGIN: Final = "<!-- drawn from the table of states -->"
END: Final = "<!-- end of what is drawn -->"


def picture() -> str:
    """A Mermaid diagram: one arrow per pair of states, labeled with all causes of that transition."""
    arrows = defaultdict(list)
    for (state, cause), then in TRANSITIONS.items():
        arrows[state, then].append(cause.value)
    lines = [f"    {a.label} --> {b.label}: {', '.join(causes)}" for (a, b), causes in arrows.items()]
    ends = [f"    {state.label} --> [*]" for state in State if all(a is not state for a, _ in TRANSITIONS)]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> pending: create", *lines, *ends, "```"])


def drawn(page: str) -> str:
    """The page with the diagram between its markers."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{picture()}\n{END}", page, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
