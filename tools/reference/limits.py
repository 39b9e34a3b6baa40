"""The limits of a server, from their declaration in the code."""

from __future__ import annotations

from everwork.server.limits_reference import CEILINGS, Ceiling


def tables() -> str:
    """One table for each group of limits."""
    return "\n".join(f"## {name}\n\n{_table(ceilings)}" for name, ceilings in CEILINGS.items())


def _table(ceilings: tuple[Ceiling, ...]) -> str:
    rows = [f"| {one.what} | {one.value} | {_setting(one)} | {one.above} |\n" for one in ceilings]
    return "".join(["| limit | default | setting | above it |\n|---|--:|---|---|\n", *rows])


def _setting(ceiling: Ceiling) -> str:
    name = ceiling.setting
    return f"[`{name}`](configuration.md#{name})" if name else "fixed"
