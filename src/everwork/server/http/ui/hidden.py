"""A job's texts without its secrets: hidden under their names, and wherever else they stand."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Final

from everwork.codec.json import decode
from everwork.core.job import Job
from everwork.server.http.ui.redaction import MASK, SECRET_CHARS_MIN, Masks, cut, pretty, spellings
from everwork.server.http.ui.visit import Visit

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
