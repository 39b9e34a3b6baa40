"""The page about limits: its settings exist, and it shows the defaults in the code."""

from __future__ import annotations

import re
from dataclasses import fields

from everwork.server.limits_reference import CEILINGS
from everwork.server.settings import Settings
from everwork.service.access.budgets import BULK_MIN
from tests.docs.pages import DOCS
from tools.reference.extension import with_generated

PAGE = (DOCS / "reference" / "limits.md").read_text("utf-8")


def test_every_setting_on_the_page_exists_and_has_the_default_that_it_shows() -> None:
    shown = re.findall(r"\| ([\d,]+) \| \[`(\w+)`\]\(configuration\.md#(\w+)\)", with_generated(PAGE, "limits.md"))
    assert len(shown) >= len([one for group in CEILINGS.values() for one in group if one.setting.endswith("_key")])
    for value, name, anchor in shown:
        assert (int(value.replace(",", "")), anchor) == (getattr(Settings(), name), name)


def test_every_budget_is_on_the_page() -> None:
    budgets = {"tenant_factor", "pollers_per_type", *(one.name for one in fields(Settings) if "_per_key" in one.name)}
    on_page = {ceiling.setting for group in CEILINGS.values() for ceiling in group}
    assert budgets - on_page == set()


def test_the_text_of_the_page_says_what_the_code_does() -> None:
    assert f"at least {BULK_MIN} jobs" in PAGE
    assert f"can hold {Settings().pollers_per_key:,} polls" in PAGE
    assert f"{Settings().pollers_per_key * 27 // 1_024:,} MiB, and" in PAGE
