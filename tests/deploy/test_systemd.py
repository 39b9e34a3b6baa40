"""The systemd units: read by systemd itself where it is installed, and by us everywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.files import SYSTEMD, WORKER_STOP_SECONDS

UNITS: Final = sorted(SYSTEMD.glob("*.service"))
PROGRAM: Final = "/opt/everwork/bin/everwork"
every_unit = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)


def settings(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, whatever their section; some are repeated."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@every_unit
def test_a_unit_stops_its_main_process_first_and_comes_back(path: Path) -> None:
    unit = settings(path)
    assert (unit["KillMode"], unit["Restart"], unit["Type"]) == (["mixed"], ["always"], ["exec"])
    assert unit["ExecStart"][0].startswith(f"{PROGRAM} ")
    assert "KillSignal" not in unit  # SIGTERM, the default.


@every_unit
def test_a_unit_has_no_privileges(path: Path) -> None:
    unit = settings(path)
    assert (unit["User"], unit["CapabilityBoundingSet"], unit["NoNewPrivileges"]) == (["everwork"], [""], ["true"])
    assert (unit["ProtectSystem"], unit["ProtectHome"], unit["PrivateTmp"]) == (["strict"], ["true"], ["true"])


def test_workers_get_the_time_that_the_documentation_says() -> None:
    assert settings(SYSTEMD / "everwork-worker@.service")["TimeoutStopSec"] == [str(WORKER_STOP_SECONDS)]


def test_a_server_counts_as_started_when_it_is_ready() -> None:
    [until_ready] = settings(SYSTEMD / "everwork-server.service")["ExecStartPost"]
    assert f"until {PROGRAM} probe;" in until_ready


@every_unit
def test_systemd_understands_every_line(path: Path, tmp_path: Path) -> None:
    """Where there is a systemd; the program that it looks for is not installed here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", copy], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
