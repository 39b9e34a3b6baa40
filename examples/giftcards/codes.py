"""Personal codes such as KATE1520: a name and four digits, unique to one customer."""

from __future__ import annotations

import secrets
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Final

TRIES: Final = 3
NAME_LETTERS: Final = 4

Claim = Callable[[str], Awaitable[bool]]
"""Reserves a code for a customer, atomically; False if it is already taken."""
Digits = Callable[[], int]


class DuplicatePersonalCode(Exception):
    """Every code that was tried belongs to another customer."""


def random_digits() -> int:
    """0 to 9999."""
    return secrets.randbelow(10_000)


async def generate_unique_personal_code(customer: str, claim: Claim, digits: Digits = random_digits) -> str:
    """A unique code; after three duplicates the attempt fails, and the job is retried."""
    tried: list[str] = []
    for _ in range(TRIES):
        code = f"{_letters(customer)}{digits():04d}"
        if await claim(code):
            return code
        tried.append(code)
    raise DuplicatePersonalCode(f"duplicate personal_code: {', '.join(tried)} are already taken")


def _letters(customer: str) -> str:
    """The first letters of the name, without accents; GIFT if it has none of A to Z."""
    plain = unicodedata.normalize("NFKD", customer).upper()
    return "".join(letter for letter in plain.split(" ")[0] if "A" <= letter <= "Z")[:NAME_LETTERS] or "GIFT"
