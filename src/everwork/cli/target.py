"""Loads the program for `everwork worker` or `everwork tick`, by `module:name`; each error is one line."""

from __future__ import annotations

import ast
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

DEFAULT_NAMES: Final = ("manager", "app")
"""The names to try in a module if the target does not give one."""
EXPECTED: Final = "a ProcessManager, an Everwork application, or a function without arguments that returns one"

Loaded = ProcessManager | Everwork | Callable[[], Any]


class Target(NamedTuple):
    """A module and a name in it; None stands for the default names."""

    module: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> Target:
        """`module` or `module:name`; either can have dots."""
        module, colon, name = text.partition(":")
        if module.endswith(".py") or "/" in module:
            suggested = module.removeprefix("./").removesuffix(".py").strip("/").replace("/", ".")
            names = [name] if name else _program_names(Path(module)) or ["NAME"]
            suggestions = " or ".join(f"{suggested}:{one}" for one in names)
            raise InvalidInput("target", f"must name a module, not a file: write {suggestions}")
        if not _is_dotted_name(module) or (colon and not _is_dotted_name(name)):
            raise InvalidInput(
                "target", f"must be MODULE or MODULE:NAME, such as app:manager, not {checks.shown(text)}"
            )
        return cls(module, name if colon else None)

    def __str__(self) -> str:
        return self.module if self.name is None else f"{self.module}:{self.name}"


class UserCode:
    """The user's code: imported, searched and called; its errors are reported with their location."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._names = DEFAULT_NAMES if target.name is None else (target.name,)
        self.found = target
        """The module that was found, and the name in it."""
        self._module: ModuleType | None = None

    def load(self) -> Loaded:
        """Import the module and return what the target names."""
        self._module = module = self._import_module()
        target, found = self._look_up(module)
        self.found = target
        if isinstance(found, ProcessManager | Everwork):
            return found
        if not isinstance(found, FunctionType | MethodType):
            what = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
            raise BadConfiguration(f"{target} is {what}; it must be {EXPECTED}")
        if required := _required_arguments(found):
            raise BadConfiguration(f"{target} takes arguments ({', '.join(required)}); it must be {EXPECTED}")
        return found

    def program(self, loaded: Loaded, runner: asyncio.Runner) -> ProcessManager | Everwork:
        """The loaded program. A function is called to get it; a coroutine runs in the loop that the manager uses."""
        if isinstance(loaded, ProcessManager | Everwork):
            return loaded
        try:
            made = loaded()
            if inspect.iscoroutine(made):
                made = runner.run(made)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            self._raise_located(error)
        if not isinstance(made, ProcessManager | Everwork):
            raise BadConfiguration(
                f"{self._target} has returned {checks.shown(made)}; "
                "it must return a ProcessManager or an Everwork application, without running it"
            )
        return made

    def others(self, program: ProcessManager | Everwork) -> list[str]:
        """The other programs in the module as `module:name`, if the target did not name one."""
        if self._target.name is not None or self._module is None:
            return []
        found = {
            id(value): f"{self._module.__name__}:{name}"
            for name, value in vars(self._module).items()
            if isinstance(value, ProcessManager | Everwork) and value is not program
            # An application without functions only creates jobs.
            if isinstance(value, ProcessManager) or value.functions
        }
        return list(found.values())

    def _import_module(self) -> ModuleType:
        sys.path.insert(0, str(self._folder))
        importlib.invalidate_caches()
        try:
            return importlib.import_module(self._target.module)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
            if isinstance(error, ModuleNotFoundError) and self._is_missing(error):
                raise BadConfiguration(
                    f"no module '{error.name}' in {self._folder} (--app-dir) or among the installed packages"
                ) from None
            self._raise_located(error)

    def _is_missing(self, error: ModuleNotFoundError) -> bool:
        """Whether the target itself, or a package that contains it, is missing."""
        return f"{self._target.module}.".startswith(f"{error.name}.") and self._location(error) is None

    def _look_up(self, module: ModuleType) -> tuple[Target, Any]:
        for name in self._names:
            found: Any = module
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is not None:
                return Target(module.__name__, name), found
        raise BadConfiguration(self._missing_text(module))

    def _missing_text(self, module: ModuleType) -> str:
        names = [f"'{one}'" for one in self._names]
        tried = f"no {names[0]}" if len(names) == 1 else f"neither {' nor '.join(names)}"
        others = [one for one, value in vars(module).items() if isinstance(value, ProcessManager | Everwork)]
        hint = f"; it has {', '.join(f'{module.__name__}:{one}' for one in others)}" if others else ""
        return f"module '{module.__name__}' ({module.__file__}) has {tried}{hint or f'; name {EXPECTED}'}"

    def _raise_located(self, error: BaseException) -> NoReturn:
        """Raise an error that says in one line where and why the user's code failed; the traceback is kept for
        EVERWORK_DEBUG.
        """
        location = self._location(error) or f"module '{self._target.module}'"
        if isinstance(error, SystemExit):
            raise BadConfiguration(f"{location}: the module exits here before there is anything to run") from error
        raise BadConfiguration(f"{location}: {_error_text(error)}") from error

    def _location(self, error: BaseException) -> str | None:
        """The last line of the user's own code that was reached."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{self._shown_path(error.filename)}, line {error.lineno}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if self._is_own(frame.filename)]
        return f"{self._shown_path(frames[-1].filename)}, line {frames[-1].lineno}" if frames else None

    def _is_own(self, filename: str) -> bool:
        """Whether a file belongs to the user's program: in its directory, or in the package that was named."""
        file = Path(filename)
        if file.is_relative_to(self._folder):
            return "site-packages" not in file.parts
        roots = [Path(folder, self._target.module.split(".")[0]) for folder in sys.path]
        return any(file.is_relative_to(root) or file.with_suffix("") == root for root in roots)

    def _shown_path(self, filename: str) -> str:
        file = Path(filename)
        return str(file.relative_to(self._folder) if file.is_relative_to(self._folder) else file)


def _error_text(error: BaseException) -> str:
    """An error's message, with its class unless the message is clear without it."""
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


def _program_names(file: Path) -> list[str]:
    """The names of the programs that a file creates at its top level, found without running it."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    names = []
    for one in statements:
        if isinstance(one, ast.Assign | ast.AnnAssign) and isinstance(one.value, ast.Call):
            created = ast.unparse(one.value.func).rpartition(".")[2]
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            if created in (Everwork.__name__, ProcessManager.__name__):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _required_arguments(function: Callable[..., Any]) -> list[str]:
    """The required arguments of a function."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = inspect.signature(function).parameters.values()
    return [one.name for one in named if one.default is one.empty and one.kind not in optional]
