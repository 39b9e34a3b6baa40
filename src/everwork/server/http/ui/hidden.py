"""A job's texts without its secrets: hidden under their names, and wherever else they stand."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, Final

import orjson

from everwork.core.job import Job
from everwork.engines.codec import decode
from everwork.server.http.ui.texts import MASK, SECRET_CHARS_MIN, Masks, pretty
from everwork.server.http.ui.visit import Visit

SECRETS_MAX: Final = 1_000
"""Of a job with more secrets no free text is shown: to look for each of them would hold the server up."""


class Hidden:
    """What may be shown of one job."""

    def __init__(self, masks: Masks, job: Job) -> None:
        self._masks = masks
        texts = {"variables": job.variables, "headers": job.headers, "result": job.result, "extra": job.extra}
        self._texts = {name: text for name, text in texts.items() if text is not None}

    def json(self, name: str) -> str | None:
        """One of the job's JSON values, for people; None if it has none."""
        if name not in self._values:
            return None
        return self.cleaned(pretty(self._masks.masked(self._values[name])))

    def cleaned(self, text: str) -> str:
        """A text, an error say, without the secrets that stand in the job's values."""
        if len(self._secrets) > SECRETS_MAX:
            return MASK
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    @cached_property
    def _values(self) -> dict[str, Any]:
        return {name: decode(text) for name, text in self._texts.items()}

    @cached_property
    def _secrets(self) -> list[str]:
        """Longest first: one may be a part of another. Also as JSON spells them."""
        found = {secret for value in self._values.values() for secret in self._masks.secrets_in(value)}
        long = {secret for secret in found if len(secret) >= SECRET_CHARS_MIN}
        return sorted(long | {orjson.dumps(secret).decode()[1:-1] for secret in long}, key=len, reverse=True)


def masks_of(visit: Visit) -> Masks:
    """What this server must not show."""
    return _masks(visit.parts.settings.masked_variables)


@lru_cache(maxsize=8)
def _masks(names: tuple[str, ...]) -> Masks:
    return Masks(names)
