"""Texts of strangers as a page may show them: nothing hides in them, nothing acts, secrets stay out."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote, quote_plus

import orjson

from everwork.codec.json import decode
from everwork.core.job import Job
from everwork.server.http.ui.visit import Visit

MASK: Final = "••••••"
SECRET_CHARS_MIN: Final = 4
"""Shorter secrets are not looked for in other texts: they would be found everywhere."""
END_CHARS_MIN: Final = 5
"""From so many letters on a listed name hides also at the end of a word: `token` hides `authtoken`."""
INSIDE_CHARS_MIN: Final = 8
"""From so many letters on it hides anywhere: `password` hides `dbpasswordhash`."""
NAME_CHARS_MAX: Final = 200
"""Of longer names only the end is looked at."""
SHOWN_CHARS_MAX: Final = 20_000
_HIDING: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_PLAIN: Final = re.compile(r"[\t\n\x20-\x7e]*")
_APART: Final = re.compile(r"[\W_]+")
_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SCHEME: Final = re.compile(r"^(?:bearer|basic|token|apikey)\s+(?=\S{4})", re.IGNORECASE)
_SQUEEZED: Final = {code: None for code in range(128) if not chr(code).isalnum()}
_URL_PASSWORD: Final = re.compile(r"""(//[^\s/:@"'<>\\]*:)([^\s/"'<>\\]+)@""")


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
    """Which names of variables and headers are secret: those in which the words of a given one stand together.

    Spaces, case, accents, a plural and a number behind make no difference: `api key` hides `apiKeys2` and `X-API-Key`.
    Without any name nothing is masked.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._listed = frozenset(bare for name in names if (bare := _bare(_words(name))))
        self._lengths = sorted({len(bare) for bare in self._listed})
        one_of = "|".join(map(re.escape, sorted(self._listed)))
        self._any, self._begins = re.compile(one_of), re.compile(f"(?={one_of})")
        self._known = lru_cache(maxsize=4_096)(self._hides)

    def hides(self, name: str) -> bool:
        """Whether what stands under this name must not be shown."""
        return self._may_hide(name) and self._known(name[-NAME_CHARS_MAX:])

    def _may_hide(self, text: str) -> bool:
        """Whether it is worth to look at a text closely: this takes a tenth of the time."""
        return bool(self._listed) and (not text.isascii() or bool(self._any.search(text.translate(_SQUEEZED).lower())))

    def _hides(self, name: str) -> bool:
        words = _words(name)
        whole = "".join(words)
        borders = {0, *accumulate(map(len, words))}
        starts = (match.start() for match in self._begins.finditer(whole))
        return any(self._is_listed(whole, at, at + size, borders) for at in starts for size in self._lengths)

    def _is_listed(self, whole: str, at: int, end: int, borders: Set[int]) -> bool:
        """Short names must be words of their own: a pin is secret, a spin is not."""
        if end > len(whole) or whole[at:end] not in self._listed:
            return False
        plural = end + whole.startswith("s", end)
        behind = len(whole) - len(whole[plural:].lstrip("0123456789"))
        is_over = not borders.isdisjoint((end, plural, behind))
        is_last = behind == len(whole)
        size = end - at
        return size >= INSIDE_CHARS_MIN or (is_over and at in borders) or (is_last and size >= END_CHARS_MIN)

    def masked(self, value: Any) -> Any:
        """A JSON value without what is secret in it, however deep."""
        if isinstance(value, Mapping):
            hidden = self._hidden_in(value)
            return {name: MASK if name in hidden else self.masked(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.masked(one) for one in value]
        return self._masked_text(value) if isinstance(value, str) else value

    def _masked_text(self, text: str) -> str:
        inner = self._inner(text)
        if inner is None or (masked := self.masked(inner)) == inner:
            return self.without_passwords(text)
        return orjson.dumps(masked).decode()

    def _inner(self, text: str) -> Any:
        """The JSON object or list that a text is; None if it is none, or nothing can be secret in it."""
        if text.lstrip()[:1] not in ("{", "[") or not self._may_hide(text):
            return None
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return None

    def without_passwords(self, text: str) -> str:
        """A text without the passwords that stand in its URLs."""
        return _URL_PASSWORD.sub(rf"\1{MASK}@", text) if self._listed and "//" in text else text

    def secrets_in(self, value: Any) -> Iterator[str]:
        """The texts that are hidden in a JSON value."""
        if isinstance(value, Mapping):
            hidden = self._hidden_in(value)
            for name, one in value.items():
                yield from _texts(one) if name in hidden else self.secrets_in(one)
        elif isinstance(value, list):
            for one in value:
                yield from self.secrets_in(one)
        elif isinstance(value, str) and self._listed:
            if "//" in value:
                yield from (found[1] for found in _URL_PASSWORD.findall(value))
            yield from self.secrets_in(self._inner(value))

    def _hidden_in(self, value: Mapping[str, Any]) -> set[str]:
        """The names whose values are secret; of a pair like name and value, the value if such a name stands there."""
        hidden = {name for name in value if self.hides(name)}
        is_pair = "value" in value and any(self.hides(str(value.get(label, ""))) for label in ("name", "key"))
        return hidden | {"value"} if is_pair else hidden


def spellings(secret: str) -> set[str]:
    """How a secret may stand in another text: as it is, in JSON, in Python, in an address, without `Bearer` before."""
    bare = _SCHEME.sub("", secret)
    found = {bare, secret}
    if secret.isascii() and secret.isalnum():
        return found
    for one in (bare, secret):
        in_json = (orjson.dumps(one).decode()[1:-1], json.dumps(one)[1:-1])
        found |= {*in_json, repr(one)[1:-1], quote(one), quote(one, safe=""), quote_plus(one)}
    return found


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
    """apiKey, API-Key and api_key are the same name; ápi kéy is spelt in another way only."""
    if not name.isascii():
        name = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    return _APART.sub(" ", _HUMPS.sub(" ", name).casefold()).split()


SECRETS_MAX: Final = 1_000
"""Of a job with more secrets no free text is shown: to look for each of them would hold the server up."""
PAGE_WORK_MAX: Final = 50_000_000
"""Characters times secrets: about so many are looked through in a twentieth of a second."""
FILE_WORK_MAX: Final = 40 * PAGE_WORK_MAX
FACTS: Final = ("correlation_id", "dedupe_key", "limit_key", "error_code", "worker")
_MARK: Final = "\0"
_MARKS: Final = re.compile("\0+")


class Hidden:
    """What may be shown of one job."""

    def __init__(self, masks: Masks, job: Job) -> None:
        self._masks = masks
        self._job = job
        texts = {"variables": job.variables, "headers": job.headers, "result": job.result, "extra": job.extra}
        self._texts = {name: text for name, text in texts.items() if text is not None}

    def json(self, name: str) -> tuple[str, int] | None:
        """The beginning of one of the job's JSON values, for people, and how many characters were left out."""
        text = self._pretty(name)
        if text is None:
            return None
        shown, left = cut(text)
        if not left:
            return self.cleaned(text), 0
        # What stands across the end of what is shown must be found, too.
        longest = len(self._secrets[0]) if self._secrets else 0
        marked = self._marked(text[: len(shown) + longest], PAGE_WORK_MAX)
        return (MASK if marked is None else self._unmarked(marked[: len(shown)])), left

    def whole_json(self, name: str) -> str | None:
        """One of the job's JSON values to the end. It may take seconds: for threads."""
        text = self._pretty(name)
        return None if text is None else self.cleaned(text, FILE_WORK_MAX)

    def cleaned(self, text: str, work_max: int = PAGE_WORK_MAX) -> str:
        """A text, an error say, without the secrets that stand in the job's values."""
        marked = self._marked(text, work_max)
        return MASK if marked is None else self._unmarked(marked)

    @property
    def facts(self) -> Job:
        """The job with cleaned names of its own."""
        said: dict[str, Any] = {name: self.cleaned(text) for name in FACTS if (text := getattr(self._job, name))}
        return replace(self._job, **said)

    def _pretty(self, name: str) -> str | None:
        return pretty(self._masks.masked(self._values[name])) if name in self._values else None

    def _marked(self, text: str, work_max: int) -> str | None:
        """A text of the same length in which the secrets are marks; None if to look for them takes too long."""
        if len(self._secrets) > SECRETS_MAX or len(self._secrets) * len(text) > work_max:
            return None
        for secret in self._secrets:
            text = text.replace(secret, _MARK * len(secret))
        return text

    def _unmarked(self, text: str) -> str:
        return self._masks.without_passwords(_MARKS.sub(MASK, text))

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {name: decode(text) for name, text in self._texts.items()}

    @cached_property
    def _secrets(self) -> list[str]:
        """Longest first: one may be a part of another. A few more than are looked for, if there are too many."""
        found = (secret for value in self._values.values() for secret in self._masks.secrets_in(value))
        long: set[str] = set()
        for secret in found:
            if len(secret) >= SECRET_CHARS_MIN and secret not in long:
                long |= spellings(secret)
            if len(long) > SECRETS_MAX:
                break
        return sorted(long, key=len, reverse=True)


def masks_of(visit: Visit) -> Masks:
    """What this server must not show."""
    return _masks(visit.parts.settings.masked_variables)


@lru_cache(maxsize=8)
def _masks(names: tuple[str, ...]) -> Masks:
    return Masks(names)
