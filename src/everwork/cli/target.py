"""What `everwork worker` or `everwork tick` is to run: found by `module:name`, each mistake told in one line."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import ValidationError

from everwork.app.app import Everwork
from everwork.core import checks
from everwork.exceptions import BadConfiguration, EverworkError, InvalidInput
from everwork.manager.manager import ProcessManager

NAMES: Final = ("manager", "app")
"""What is looked for in a module when nothing is said."""
WANTED: Final = "a ProcessManager, an Everwork application, or a function without arguments that returns one"


class Target(NamedTuple):
    """A module, and what of it is meant; None: whatever has one of the usual names."""

    module: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> Target:
        """`module` or `module:name`; either may have dots."""
        module, colon, name = text.partition(":")
        if module.endswith(".py") or "/" in module:
            meant = module.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
            raise InvalidInput("target", f"must name a module, not a file: write {meant}:{name or NAMES[0]}")
        if not _is_dotted(module) or (colon and not _is_dotted(name)):
            raise InvalidInput(
                "target", f"must be MODULE or MODULE:NAME, such as app:manager, not {checks.shown(text)}"
            )
        return cls(module, name if colon else None)

    def __str__(self) -> str:
        return self.module if self.name is None else f"{self.module}:{self.name}"


class Users:
    """The user's own code: imported, looked into and called, and what it raises is told with its place."""

    def __init__(self, target: Target, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self._target = target
        self._folder = folder
        self._names = names if target.name is None else (target.name,)

    def found(self) -> ProcessManager | Everwork | Callable[[], Any]:
        """What the target names."""
        module = self._imported()
        target, found = self._looked_up(module)
        if isinstance(found, ProcessManager | Everwork):
            return found
        if not isinstance(found, FunctionType | MethodType):
            what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
            raise BadConfiguration(f"{target} is {what}; it must be {WANTED}")
        if needed := _needed(found):
            raise BadConfiguration(f"{target} takes arguments ({', '.join(needed)}); it must be {WANTED}")
        return found

    def made_by(self, function: Callable[[], Any], runner: asyncio.Runner) -> ProcessManager | Everwork:
        """What a function returns, or a coroutine function in the loop that the manager will run in."""
        try:
            made = function()
            if inspect.iscoroutine(made):
                made = runner.run(made)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            self._blame(error)
        if not isinstance(made, ProcessManager | Everwork):
            raise BadConfiguration(
                f"{self._target} has returned {checks.shown(made)}; "
                "it must return a ProcessManager or an Everwork application, without running it"
            )
        return made

    def _imported(self) -> ModuleType:
        sys.path.insert(0, str(self._folder))
        importlib.invalidate_caches()
        try:
            return importlib.import_module(self._target.module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            if isinstance(error, ModuleNotFoundError) and self._is_missing(error):
                raise BadConfiguration(
                    f"there is no module '{error.name}' in {self._folder} (--app-dir) nor among the installed packages"
                ) from None
            self._blame(error)

    def _is_missing(self, error: ModuleNotFoundError) -> bool:
        """Whether it is the target itself, or a package that it is in, that is not there."""
        return f"{self._target.module}.".startswith(f"{error.name}.") and self._place(error) is None

    def _looked_up(self, module: ModuleType) -> tuple[Target, Any]:
        for name in self._names:
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                return Target(module.__name__, name), found
        raise BadConfiguration(self._nothing_in(module))

    def _nothing_in(self, module: ModuleType) -> str:
        names = [f"'{one}'" for one in self._names]
        tried = f"no {names[0]}" if len(names) == 1 else f"neither {' nor '.join(names)}"
        others = [one for one, value in vars(module).items() if isinstance(value, ProcessManager | Everwork)]
        hint = f"; there is {', '.join(f'{module.__name__}:{one}' for one in others)}" if others else ""
        return f"module '{module.__name__}' ({module.__file__}) has {tried}{hint or f'; name {WANTED}'}"

    def _blame(self, error: BaseException) -> NoReturn:
        """Tell where the user's code has failed, and why, in one line; its traceback is kept for who asks for it."""
        place = self._place(error) or f"module '{self._target.module}'"
        if isinstance(error, SystemExit):
            raise BadConfiguration(f"{place}: the program is ended here, before there is anything to run") from error
        raise BadConfiguration(f"{place}: {_said(error)}") from error

    def _place(self, error: BaseException) -> str | None:
        """The last line of the user's own code that was reached."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{self._shown(error.filename)}, line {error.lineno}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if self._is_own(frame.filename)]
        return f"{self._shown(frames[-1].filename)}, line {frames[-1].lineno}" if frames else None

    def _is_own(self, filename: str) -> bool:
        """Whether a file belongs to the user's program: in its directory, or in the package that was named."""
        file = Path(filename)
        if file.is_relative_to(self._folder):
            return "site-packages" not in file.parts
        roots = [Path(folder, self._target.module.split(".")[0]) for folder in sys.path]
        return any(file.is_relative_to(root) or file.with_suffix("") == root for root in roots)

    def _shown(self, filename: str) -> str:
        file = Path(filename)
        return str(file.relative_to(self._folder) if file.is_relative_to(self._folder) else file)


def _said(error: BaseException) -> str:
    """What an error says, and of which kind it is, unless it speaks for itself."""
    match error:
        case EverworkError():
            return str(error)
        case ValidationError():
            wrong = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            return f"{error.title}: {'; '.join(wrong)}"
        case SyntaxError():
            return f"{type(error).__name__}: {error.msg}"
        case _:
            return ": ".join(part for part in (type(error).__name__, str(error)) if part)


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _needed(function: Callable[..., Any]) -> list[str]:
    """The arguments that a function cannot be called without."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = inspect.signature(function).parameters.values()
    return [one.name for one in named if one.default is one.empty and one.kind not in optional]
