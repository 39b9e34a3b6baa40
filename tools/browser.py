"""Finds the browser for the dashboard's tests; on Debian and Ubuntu, root can install it.

    python -m tools.browser [--install]

Playwright's bundled browser is not used: the system's own browser is what users have, and it is kept up to date.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "EVERWORK_BROWSER"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE: Final = "chromium"
SECONDS_MAX: Final = 600
ADVICE: Final = f"install Chromium (on Debian and Ubuntu: apt-get install {PACKAGE}), or name one in {VARIABLE}"


def find_browser(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path of Chromium, from the environment variable or the system; None if there is none."""
    named = environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def why_none(environ: Mapping[str, str] = os.environ) -> str:
    """Explain why there is no browser, and how to get one."""
    named = environ.get(VARIABLE)
    missing = f"{VARIABLE}={named} is not a program" if named else f"none of {', '.join(NAMES)} was found"
    return f"{missing}: {ADVICE}"


def install() -> str | None:
    """Install the system's package, where possible; returns the path of the browser."""
    if os.geteuid() != 0 or os.environ.get(VARIABLE) or shutil.which("apt-get") is None:
        return None
    _say(f"installing {PACKAGE}, which the dashboard's tests need")
    if not (_apt("install") or (_apt("update") and _apt("install"))):
        _say(f"apt-get could not install {PACKAGE}")
    return find_browser()


def _apt(action: str) -> bool:
    """Run apt-get; returns whether it succeeded. Its output is shown only if it failed."""
    more = ["--yes", "--no-install-recommends", PACKAGE] if action == "install" else []
    command = ["apt-get", "-qq", action, *more]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"apt-get {action}: {error}")
        return False
    if done.returncode:
        _say(f"apt-get {action}: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return not done.returncode


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(arguments: list[str]) -> None:
    """Print the path of the browser. If it is missing, that is no error: the test run reports it at its end."""
    found = find_browser() or (install() if "--install" in arguments else None)
    if found is None:
        _say(f"NO BROWSER, so the dashboard will not be tested: {why_none()}")
    else:
        sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
