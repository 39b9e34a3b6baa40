"""Writes who may call what into `docs/keys.md`, from the rules of the verbs: run it after every change of one.

python -m tools.draw_rules
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.verb import BY_MINUTE, Rule, rules_of

PAGE: Final = Path(__file__).parents[1] / "docs" / "keys.md"
BEGIN: Final = "<!-- written from the rules of the verbs -->"
END: Final = "<!-- end of what is written -->"


def table() -> Iterator[str]:
    """A row for each verb: of jobs first, then of the store."""
    yield "| operation | the key needs | if it has tenants | audit log |"
    yield "|---|---|---|---|"
    for service in (Jobs, Admin):
        yield from (_row(name, rule) for name, rule in rules_of(service).items())


def drawn(page: str) -> str:
    """The page with the table between its marks."""
    rows = "\n".join(table())
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{rows}\n{END}", page, count=1, flags=re.DOTALL)


def _row(name: str, rule: Rule) -> str:
    needed = " or ".join(f"`{one.value}`" for one in rule.permissions)
    audit = ", ".join(f"`{one}`" for one in rule.audit) + (", by the minute" if rule.audited is BY_MINUTE else "")
    return f"| `{name}` | {needed} | {rule.tenants.value} | {audit} |"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
