"""The Python reference: public names, from their docstrings and signatures."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from inspect import isclass, isroutine
from typing import Any, Final

import everwork.exceptions

MODULES: Final = ("everwork", "everwork.client", "everwork.testing", "everwork.exceptions")


def public_names() -> list[str]:
    """Every public name with its module."""
    return [f"{module}.{name}" for module in MODULES for name in _exported(module)]


def names(*wanted: str) -> str:
    """The entries of some public names."""
    return "".join(_entry(name) for name in wanted)


def defined_as(name: str) -> str:
    """The module that defines a public name, and its name there."""
    one = found(name)
    return f"{one.__module__}.{one.__qualname__}" if hasattr(one, "__qualname__") else name


def _exported(module: str) -> Iterator[str]:
    if module != "everwork.exceptions":
        yield from import_module(module).__all__
        return
    own = vars(everwork.exceptions).items()
    yield from (name for name, one in own if isclass(one) and one.__module__ == module)


def found(name: str) -> Any:
    """The object with a public name."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _entry(name: str) -> str:
    one = found(name)
    directive, options = "autodata", ""
    if isclass(one):
        directive, options = (
            "autoclass",
            "   :members:\n   :inherited-members: BaseException, BaseModel, Enum, Exception, int, str, tuple\n",
        )
    elif isroutine(one) or hasattr(one, "__wrapped__"):
        directive = "autofunction"
    short = name.rpartition(".")[2]
    return f"## {short}\n\n```{{eval-rst}}\n.. {directive}:: {name}\n{options}```\n\n"
