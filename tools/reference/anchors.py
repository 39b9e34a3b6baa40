"""Anchors of headings and terms, spelled as code forges spell them."""

from __future__ import annotations

import re


def slug(title: str) -> str:
    """The anchor of a heading: `What's new` is `whats-new`."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
