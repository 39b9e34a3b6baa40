"""Draws the states of a job as `docs/images/states.svg`, from the transition table: run it after every change to the
table.

python -m tools.state_picture
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from everwork.core.states import FINISHED_STATES, TRANSITIONS, Cause, State

PICTURE: Final = Path(__file__).parents[1] / "docs" / "images" / "states.svg"
CENTERS: Final = {
    State.PENDING: (130, 170),
    State.PROCESSING: (430, 170),
    State.COMPLETED: (730, 170),
    State.FAILED: (280, 300),
    State.CANCELLED: (280, 40),
}
PATHS: Final = {
    (State.PENDING, State.PROCESSING): ("M190 158 H366", (280, 150)),
    (State.PROCESSING, State.PENDING): ("M370 182 H194", (280, 200)),
    (State.PROCESSING, State.COMPLETED): ("M490 170 H666", (580, 162)),
    (State.PENDING, State.CANCELLED): ("M150 148 L232 66", (120, 100)),
    (State.PROCESSING, State.CANCELLED): ("M410 148 L328 66", (400, 100)),
    (State.PROCESSING, State.FAILED): ("M410 192 L328 274", (500, 252)),
    (State.FAILED, State.PENDING): ("M232 274 L150 192", (110, 252)),
}
"""The line of each arrow, and the position of its label."""
WORDS: Final = {Cause.LAPSE: "lease expired"}
STYLE: Final = """
  .card { fill: #ffffff; stroke: #d8dee6 } .box { fill: #f4f6f9; stroke: #5b6b7f } .end { fill: #e9edf2 }
  .line { stroke: #5b6b7f; stroke-width: 1.5; fill: none } .tip { fill: #5b6b7f }
  text { font: 14px system-ui, sans-serif; fill: #1c2733; text-anchor: middle }
  .word { font-size: 12.5px; fill: #44525f }
  @media (prefers-color-scheme: dark) {
    .card { fill: #12171d; stroke: #2c3640 } .box { fill: #1c242d; stroke: #8496a8 } .end { fill: #27313c }
    .line { stroke: #8496a8 } .tip { fill: #8496a8 } text { fill: #e6ebf0 } .word { fill: #b3bfca }
  }
"""


def picture() -> str:
    """The whole file."""
    parts = [_arrow(*pair, causes) for pair, causes in _arrows().items()] + [_box(state) for state in State]
    return "\n".join([_HEAD, *parts, "</svg>", ""])


def _arrows() -> dict[tuple[State, State], list[Cause]]:
    arrows = defaultdict(list)
    for (state, cause), then in TRANSITIONS.items():
        arrows[state, then].append(cause)
    return arrows


def _arrow(state: State, then: State, causes: list[Cause]) -> str:
    line, (x, y) = PATHS[state, then]
    words = ", ".join(WORDS.get(cause, cause.value) for cause in causes)
    return f'<path class="line" d="{line}" marker-end="url(#tip)"/><text class="word" x="{x}" y="{y}">{words}</text>'


def _box(state: State) -> str:
    x, y = CENTERS[state]
    look = "box end" if state in FINISHED_STATES else "box"
    shape = f'<rect class="{look}" x="{x - 60}" y="{y - 22}" width="120" height="44" rx="8"/>'
    return f'{shape}<text x="{x}" y="{y + 5}">{state.label}</text>'


_HEAD: Final = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 340"
 role="img" aria-label="The states of a job">
<style>{STYLE}</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>
<rect class="card" x="1" y="1" width="818" height="338" rx="10"/>"""


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
