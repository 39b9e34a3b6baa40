"""Messages in the words of whoever wrote what they quote: JSON and TOML say true, false and null."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_QUOTED: Final = re.compile(r"(?<=, not )(True|False|None)$")


def as_written(message: str) -> str:
    """A message that ends with the value it complains of; texts stand in quotes there, and stay as they are."""
    return _QUOTED.sub(lambda found: _WORDS[found[0]], message)
