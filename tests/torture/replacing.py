"""Change the source of functions at run time, for mutants."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any


def replace_source(owner: Any, function: str, old: str, new: str) -> None:
    """Change the source of a function of a module or class, and put the changed function in its place."""
    source = textwrap.dedent(inspect.getsource(getattr(owner, function)))
    assert old in source, f"{function}: {old!r} is no longer there"
    scope = owner.__dict__ if inspect.ismodule(owner) else vars(sys.modules[owner.__module__])
    made: dict[str, Any] = {}
    exec(source.replace(old, new), scope, made)
    setattr(owner, function, made[function])
