"""Finds the browser that the dashboard is tested with; on Debian and Ubuntu, root may have it installed.

    python -m tools.browser [--install]

The package playwright brings no browser here: the system's own is what people have, and is kept up to date with it.
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
    """The path of a Chromium; None if there is none. The variable goes before what the system has."""
    named = environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def why_none(environ: Mapping[str, str] = os.environ) -> str:
    """What to tell whoever has no browser: what is missing, and what to do."""
    named = environ.get(VARIABLE)
    missing = f"{VARIABLE}={named} is no program" if named else f"there is none of {', '.join(NAMES)}"
    return f"{missing}: {ADVICE}"


def install() -> str | None:
    """Have the system's package installed, where that is possible; the path of the browser then."""
    if os.geteuid() != 0 or os.environ.get(VARIABLE) or shutil.which("apt-get") is None:
        return None
    _say(f"installing {PACKAGE}, which the dashboard's tests need")
    if not (_apt("install") or (_apt("update") and _apt("install"))):
        _say(f"apt-get could not install {PACKAGE}")
    return find_browser()


def _apt(action: str) -> bool:
    """Whether it went well. What it says is of interest only if it did not."""
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
    """Say which browser there is. Having none is no failure: whoever runs the tests is told once more at their end."""
    found = find_browser() or (install() if "--install" in arguments else None)
    if found is None:
        _say(f"NO BROWSER, so the dashboard will not be tested: {why_none()}")
    else:
        sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
