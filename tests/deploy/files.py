"""Where the files of a deployment are, and what they must agree on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
COMPOSE: Final = sorted((DEPLOY / "compose").glob("*.yaml"))
KUBERNETES: Final = DEPLOY / "kubernetes"
SYSTEMD: Final = DEPLOY / "systemd"
WORKER_STOP_SECONDS: Final = 205
"""What docs/how-to/workers.md says of the defaults: execution_timeout 180 + shutdown_timeout 20 + 5."""


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def service(compose: Path, name: str) -> dict[str, Any]:
    """A service of a Compose file, with what it shares merged in."""
    found: dict[str, Any] = documents(compose)[0]["services"][name]
    return found
