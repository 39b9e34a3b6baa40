"""Makes untrusted text safe to show: invisible characters are spelled out, secrets are masked."""

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

from everwork.codec.fields import JSON_TEXTS, TEXTS
from everwork.codec.json import decode_shown
from everwork.core.job import StoredJob
from everwork.core.queries import JobFilter
from everwork.engines.rules import error_matches
from everwork.server.http.ui.visit import Visit
from everwork.service.bulk import BulkFilter

MASK: Final = "••••••"
SECRET_CHARS_MIN: Final = 4
"""Shorter secrets are not searched for in other texts: they would match everywhere."""
END_CHARS_MIN: Final = 5
"""Listed names of at least this length also match at the end of a word: `token` masks `authtoken`."""
INSIDE_CHARS_MIN: Final = 8
"""Listed names of at least this length match anywhere: `password` masks `dbpasswordhash`."""
NAME_CHARS_MAX: Final = 200
"""For longer names, only the end is checked."""
SHOWN_CHARS_MAX: Final = 20_000
_HIDING: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_PLAIN: Final = re.compile(r"[\t\n\x20-\x7e]*")
_APART: Final = re.compile(r"[\W_]+")
_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SCHEME: Final = re.compile(r"^(?:bearer|basic|token|apikey)\s+(?=\S{4})", re.IGNORECASE)
_SQUEEZED: Final = {code: None for code in range(128) if not chr(code).isalnum()}
_URL_PASSWORD: Final = re.compile(r"""(//[^\s/:@"'<>\\]*:)([^\s/"'<>\\]+)@""")


def visible(text: object) -> str:
    """Spell out characters that are invisible or change the text direction."""
    whole = str(text)
    return whole if _PLAIN.fullmatch(whole) else "".join(map(_visible, whole.replace("\r\n", "\n")))


def _visible(char: str) -> str:
    if char in "\t\n" or unicodedata.category(char) not in _HIDING:
        return char
    return f"⟨U+{ord(char):04X}⟩"


def one_line(text: object, chars_max: int = 200) -> str:
    """The start of a text, on one line."""
    flat = " ".join(visible(str(text)[: chars_max * 2]).split())
    return flat if len(flat) <= chars_max else f"{flat[: chars_max - 1]}…"


def cut(text: str, chars_max: int = SHOWN_CHARS_MAX) -> tuple[str, int]:
    """The start of a text, and the number of characters left out."""
    return text[:chars_max], max(0, len(text) - chars_max)


class Masks:
    """Decides which variables and headers are secret: those whose names contain the words of a listed name.

    Spaces, case, accents, a plural and a trailing number do not matter: `api key` masks `apiKeys2` and `X-API-Key`.
    Without listed names nothing is masked.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._listed = frozenset(bare for name in names if (bare := _bare(_words(name))))
        self._lengths = sorted({len(bare) for bare in self._listed})
        one_of = "|".join(map(re.escape, sorted(self._listed)))
        self._any_name, self._name_start = re.compile(one_of), re.compile(f"(?={one_of})")
        self._known = lru_cache(maxsize=4_096)(self._hides)

    def __bool__(self) -> bool:
        """Whether anything is masked."""
        return bool(self._listed)

    def hides(self, name: str) -> bool:
        """Whether the value of this name is secret."""
        return self._may_hide(name) and self._known(name[-NAME_CHARS_MAX:])

    def _may_hide(self, text: str) -> bool:
        """Quickly check whether a text can contain a listed name; this is ten times faster than the full check."""
        return bool(self._listed) and (
            not text.isascii() or bool(self._any_name.search(text.translate(_SQUEEZED).lower()))
        )

    def _hides(self, name: str) -> bool:
        words = _words(name)
        whole = "".join(words)
        borders = {0, *accumulate(map(len, words))}
        starts = (match.start() for match in self._name_start.finditer(whole))
        return any(self._is_listed(whole, at, at + size, borders) for at in starts for size in self._lengths)

    def _is_listed(self, whole: str, at: int, end: int, borders: Set[int]) -> bool:
        """Whether a name is listed. Short listed names must be whole words: a pin is secret, a spin is not."""
        if end > len(whole) or whole[at:end] not in self._listed:
            return False
        plural = end + whole.startswith("s", end)
        behind = len(whole) - len(whole[plural:].lstrip("0123456789"))
        is_over = not borders.isdisjoint((end, plural, behind))
        is_last = behind == len(whole)
        size = end - at
        return size >= INSIDE_CHARS_MIN or (is_over and at in borders) or (is_last and size >= END_CHARS_MIN)

    def masked(self, value: Any) -> Any:
        """A JSON value with its secrets masked, at any depth."""
        if isinstance(value, Mapping):
            secret = self._secret_names(value)
            return {name: MASK if name in secret else self.masked(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.masked(one) for one in value]
        return self._masked_text(value) if isinstance(value, str) else value

    def _masked_text(self, text: str) -> str:
        inner = self._inner(text)
        if inner is None or (masked := self.masked(inner)) == inner:
            return self.without_passwords(text)
        return orjson.dumps(masked).decode()

    def _inner(self, text: str) -> Any:
        """The JSON object or list that a text encodes; None if it encodes neither, or holds no secrets."""
        if text.lstrip()[:1] not in ("{", "[") or not self._may_hide(text):
            return None
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return None

    def without_passwords(self, text: str) -> str:
        """A text with the passwords in its URLs masked."""
        return _URL_PASSWORD.sub(rf"\1{MASK}@", text) if self._listed and "//" in text else text

    def secrets_in(self, value: Any) -> Iterator[str]:
        """The secret texts of a JSON value."""
        if isinstance(value, Mapping):
            secret = self._secret_names(value)
            for name, one in value.items():
                yield from _texts(one) if name in secret else self.secrets_in(one)
        elif isinstance(value, list):
            for one in value:
                yield from self.secrets_in(one)
        elif isinstance(value, str) and self._listed:
            if "//" in value:
                yield from (found[1] for found in _URL_PASSWORD.findall(value))
            yield from self.secrets_in(self._inner(value))

    def _secret_names(self, value: Mapping[str, Any]) -> set[str]:
        """The names whose values are secret; in a name/value pair, `value` if the name is secret."""
        secret = {name for name in value if self.hides(name)}
        is_pair = "value" in value and any(self.hides(str(value.get(label, ""))) for label in ("name", "key"))
        return secret | {"value"} if is_pair else secret


def spellings(secret: str) -> set[str]:
    """The forms a secret can take in other texts: plain, in JSON, in Python, in a URL, without a leading `Bearer`."""
    bare = _SCHEME.sub("", secret)
    found = {bare, secret}
    if secret.isascii() and secret.isalnum():
        return found
    for one in (bare, secret):
        in_json = (orjson.dumps(one).decode()[1:-1], json.dumps(one)[1:-1])
        found |= {*in_json, repr(one)[1:-1], quote(one), quote(one, safe=""), quote_plus(one)}
    return found


def pretty(value: Any) -> str:
    """A JSON value, indented."""
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
    """The words of a name; apiKey, API-Key, api_key and ápi kéy have the same words."""
    if not name.isascii():
        name = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    return _APART.sub(" ", _HUMPS.sub(" ", name).casefold()).split()


SECRETS_MAX: Final = 1_000
"""If a job has more secrets, none of its free text is shown: searching for all of them would block the server."""
PAGE_WORK_MAX: Final = 50_000_000
"""The maximum of characters times secrets; such a search takes about a twentieth of a second."""
FILE_WORK_MAX: Final = 40 * PAGE_WORK_MAX
_MARK: Final = "\0"
_MARKS: Final = re.compile("\0+")


class RedactedJob:
    """One job with its secrets masked."""

    def __init__(self, masks: Masks, job: StoredJob) -> None:
        self._masks = masks
        self._job = job
        self._texts = {name: text for name in JSON_TEXTS if (text := getattr(job, name)) is not None}

    def json(self, name: str) -> tuple[str, int] | None:
        """The start of one of the job's JSON values, indented, and the number of characters left out."""
        text = self._pretty(name)
        if text is None:
            return None
        shown, left = cut(text)
        if not left:
            return self.redact(text), 0
        # A secret that crosses the end of the shown text must be found, too.
        longest = len(self._secrets[0]) if self._secrets else 0
        marked = self._marked(text[: len(shown) + longest], PAGE_WORK_MAX)
        return (MASK if marked is None else self._unmarked(marked[: len(shown)])), left

    def full_json(self, name: str) -> str | None:
        """One of the job's JSON values in full. It may take seconds: call it in a thread."""
        text = self._pretty(name)
        return None if text is None else self.redact(text, FILE_WORK_MAX)

    @property
    def editable(self) -> str | None:
        """The unmasked variables, indented; None if they contain secrets or are too long for a page.

        Invisible characters are escaped as in JSON.
        """
        plain = pretty(self._values["variables"])
        if self.json("variables") != (plain, 0):
            return None
        return "".join(one if _visible(one) == one else json.dumps(one)[1:-1] for one in plain)

    def redact(self, text: str, work_max: int = PAGE_WORK_MAX) -> str:
        """A text, such as an error, with the job's secrets masked."""
        marked = self._marked(text, work_max)
        return MASK if marked is None else self._unmarked(marked)

    def shows(self, query: JobFilter) -> bool:
        """Whether the text that a search found is also visible, not only in masked values."""
        error, variables = query.error_text, query.variables_text
        is_error = error is None or error_matches(self.redact(self._job.last_error or ""), error)
        return is_error and (variables is None or variables in self._shown_variables)

    @property
    def _shown_variables(self) -> str:
        """The variables as compact JSON, in which texts are searched, with the secrets masked."""
        masked = self._masks.masked(self._values["variables"])
        return self.redact(orjson.dumps(masked, option=orjson.OPT_NON_STR_KEYS).decode())

    @property
    def job(self) -> StoredJob:
        """The job with its own texts redacted."""
        redacted: dict[str, Any] = {name: self.redact(text) for name in TEXTS if (text := getattr(self._job, name))}
        return replace(self._job, **redacted)

    def _pretty(self, name: str) -> str | None:
        return pretty(self._masks.masked(self._values[name])) if name in self._values else None

    def _marked(self, text: str, work_max: int) -> str | None:
        """A text of the same length with secrets replaced by marks; None if the search would take too long."""
        if len(self._secrets) > SECRETS_MAX or len(self._secrets) * len(text) > work_max:
            return None
        for secret in self._secrets:
            text = text.replace(secret, _MARK * len(secret))
        return text

    def _unmarked(self, text: str) -> str:
        return self._masks.without_passwords(_MARKS.sub(MASK, text))

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {name: decode_shown(text) for name, text in self._texts.items()}

    @cached_property
    def _secrets(self) -> list[str]:
        """The secrets, longest first, because one may contain another; truncated at the limit."""
        found = (secret for value in self._values.values() for secret in self._masks.secrets_in(value))
        long: set[str] = set()
        for secret in found:
            if len(secret) >= SECRET_CHARS_MIN and secret not in long:
                long |= spellings(secret)
            if len(long) > SECRETS_MAX:
                break
        return sorted(long, key=len, reverse=True)


def only_shown(search: BulkFilter, masks: Masks) -> BulkFilter:
    """The search, excluding jobs that match only in masked text."""
    filter_ = search.filter
    if not masks or (filter_.error_text is None and filter_.variables_text is None):
        return search
    return replace(search, is_shown=lambda job: RedactedJob(masks, job).shows(filter_))


def masks_of(visit: Visit) -> Masks:
    """The masks of this server."""
    return _masks(visit.context.settings.masked_variables)


@lru_cache(maxsize=8)
def _masks(names: tuple[str, ...]) -> Masks:
    return Masks(names)
