"""Installs an environment with the Django version that the tests' own environment lacks, once per checkout.

    python -m tools.other_django [--install]

On Python 3.11, the tests have Django 5.2 and the package django-tasks, and this environment gets Django 6, if a Python
3.12 or newer is found. On newer Pythons, the tests have Django 6, and this environment gets Django 5.2.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / ".venv-django"
SECONDS_MAX: Final = 600
FLAGS: Final = ("--retries=1", "--timeout=20")
"""If the package index is unreachable, fail within seconds, not minutes."""
HAS_SIX: Final = sys.version_info >= (3, 12)
"""The same choice that pip makes for the tests' own environment."""
WANTED: Final = ("django>=5.2,<6", "django-tasks>=0.12") if HAS_SIX else ("django>=6,<7",)
NAME: Final = "Django 5.2" if HAS_SIX else "Django 6"
PYTHON_MIN: Final = (3, 11) if HAS_SIX else (3, 12)
ADVICE: Final = (
    "run `python -m tools.other_django --install` where PyPI can be reached and "
    f"Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer is installed"
)
_QUESTION: Final = "import ensurepip, sys, venv; sys.exit(sys.version_info < (%d, %d))"


def find_environment() -> Path | None:
    """The environment's Python; None if it is not installed or outdated."""
    note = FOLDER / "installed"
    return FOLDER / "bin" / "python" if note.exists() and note.read_text() == _list_hash() else None


def install() -> str | None:
    """Create the environment unless it already exists; returns the reason if that fails."""
    FOLDER.mkdir(exist_ok=True)
    with (ROOT / ".venv-django" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find_environment() is not None:
            return None
        python = find_python()
        if python is None:
            return f"no Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer was found that can create virtual environments"
        problem = _run(python, "-m", "venv", str(FOLDER)) or _run(
            str(FOLDER / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *FLAGS,
            *_packages(),
        )
        if problem is None:
            (FOLDER / "installed").write_text(_list_hash())
        return problem


def find_python() -> str | None:
    """A Python that is new enough: this one, one on the PATH, or one installed by pyenv or uv."""
    return next((one for one in dict.fromkeys(_candidates()) if _is_new_enough(one)), None)


def _candidates() -> Iterator[str]:
    yield sys.executable
    names = ("python3.14", "python3.13", "python3.12", "python3", "python")
    yield from (found for name in names if (found := shutil.which(name)))
    homes = (
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python")),
    )
    for home in homes:
        yield from (str(one) for one in sorted(home.glob("*/bin/python3"), reverse=True))


def _is_new_enough(python: str) -> bool:
    """Whether a Python is new enough; it is run, because a pyenv shim can be unusable."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            [python, "-c", _QUESTION % PYTHON_MIN],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _packages() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [*project["dependencies"], *WANTED, "psycopg[binary]>=3.1"]


def _list_hash() -> str:
    return hashlib.sha256("\n".join(_packages()).encode()).hexdigest()


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[2]}: {error}"
    return f"{command[2]}: {done.stderr.decode(errors='replace').strip()[-500:]}" if done.returncode else None


def main(arguments: list[str]) -> None:
    """Print the path of the environment. If it is missing, that is no error: the test run reports it at its end."""
    problem = install() if "--install" in arguments else None
    found = find_environment()
    if found is None:
        sys.stderr.write(f"NO ENVIRONMENT WITH {NAME.upper()}, so it will not be tested: {problem or ADVICE}\n")
    else:
        sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
