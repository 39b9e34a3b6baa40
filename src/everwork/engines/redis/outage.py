"""Few words about a server that is away, however often it is tried."""

from __future__ import annotations

from everwork.logs import get_logger

log = get_logger("everwork.redis")


class Outage:
    """Says that entries cannot be read the first, second, fourth, eighth time and so on, and when they can be again."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._errors = 0

    def tell(self, error: Exception) -> None:
        """It did not work."""
        self._errors += 1
        if self._errors & (self._errors - 1) == 0:
            log.warning(
                "the inbox cannot be read, trying again", source=self._source, error=str(error), times=self._errors
            )

    def over(self) -> None:
        """It has worked."""
        if self._errors:
            log.warning("the inbox can be read again", source=self._source, errors=self._errors)
            self._errors = 0
