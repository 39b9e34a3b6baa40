"""Texts of strangers as a page may show them: nothing hides in them, nothing acts, secrets stay out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

MASK: Final = "••••••"
SECRET_CHARS_MIN: Final = 4
"""Shorter secrets are not looked for in other texts: they would be found everywhere."""
END_CHARS_MIN: Final = 5
SHOWN_CHARS_MAX: Final = 20_000
_HIDING: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_PLAIN: Final = re.compile(r"[\t\n\x20-\x7e]*")
_APART: Final = re.compile(r"[^a-z0-9]+")


def visible(text: object) -> str:
    """A text in which whatever would be invisible, or turn its neighbours round, is spelled out."""
    whole = str(text)
    return whole if _PLAIN.fullmatch(whole) else "".join(map(_visible, whole.replace("\r\n", "\n")))


def _visible(char: str) -> str:
    if char in "\t\n" or unicodedata.category(char) not in _HIDING:
        return char
    return f"⟨U+{ord(char):04X}⟩"


def one_line(text: object, chars_max: int = 200) -> str:
    """The beginning of a text, in one line."""
    flat = " ".join(visible(str(text)[: chars_max * 2]).split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 1]}…"


def cut(text: str, chars_max: int = SHOWN_CHARS_MAX) -> tuple[str, int]:
    """The beginning of a text, and how many characters were left out."""
    return text[:chars_max], max(0, len(text) - chars_max)


class Masks:
    """Which names of variables and headers are secret: each given one as a whole name, or as the end of one.

    Spaces, case, a plural and a number at the end make no difference: `api key` hides `apiKeys2`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._ends = [end for name in names if (end := _bare(_words(name)))]
        self._known = lru_cache(maxsize=4_096)(self._hides)

    def hides(self, name: str) -> bool:
        """Whether what stands under this name must not be shown."""
        return self._known(name)

    def _hides(self, name: str) -> bool:
        words = _words(name)
        whole = _bare(words)
        # Short ends must be words of their own: a pin is secret, a spin is not.
        ends = {_bare(words[at:]) for at in range(len(words))}
        return any(end in ends or (len(end) >= END_CHARS_MIN and whole.endswith(end)) for end in self._ends)

    def masked(self, value: Any) -> Any:
        """A JSON value without what is secret in it, however deep."""
        if isinstance(value, Mapping):
            return {name: MASK if self.hides(name) else self.masked(one) for name, one in value.items()}
        return [self.masked(one) for one in value] if isinstance(value, list) else value

    def secrets_in(self, value: Any) -> Iterator[str]:
        """The texts that are hidden in a JSON value."""
        if isinstance(value, Mapping):
            for name, one in value.items():
                yield from _texts(one) if self.hides(name) else self.secrets_in(one)
        elif isinstance(value, list):
            for one in value:
                yield from self.secrets_in(one)

    def cleaned(self, text: str, *values: Any) -> str:
        """A text, an error say, without the secrets that stand in these values."""
        found = {secret for value in values for secret in self.secrets_in(value) if len(secret) >= SECRET_CHARS_MIN}
        for secret in sorted(found, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


def pretty(value: Any) -> str:
    """A JSON value for people."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _bare(words: Sequence[str]) -> str:
    return "".join(words).rstrip("0123456789").removesuffix("s")


def _words(name: str) -> list[str]:
    """apiKey, API-Key and api_key are the same name."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return _APART.sub(" ", spaced.lower()).split()
