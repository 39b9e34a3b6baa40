"""The Compose files: valid, safe by default, and stopped no sooner than their jobs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import COMPOSE, ROOT, WORKER_STOP_SECONDS, documents, service

every_file = pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)


def test_there_is_one_file_for_every_engine() -> None:
    assert [path.stem for path in COMPOSE] == ["postgres", "redis", "sqlite"]


def test_they_follow_the_compose_specification() -> None:
    command: list[str | Path] = [
        Path(sys.executable).parent / "check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        *COMPOSE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@every_file
@pytest.mark.parametrize("name", ["server", "workers"])
def test_our_containers_have_no_privileges(path: Path, name: str) -> None:
    found = service(path, name)
    assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert (path.parent / found["build"]).resolve() == ROOT


@every_file
def test_only_the_server_is_published_and_only_to_this_host(path: Path) -> None:
    published = {name: found["ports"] for name, found in documents(path)[0]["services"].items() if "ports" in found}
    assert published == {"server": ["127.0.0.1:27500:27500", "127.0.0.1:27555:27555"]}


@every_file
def test_secrets_come_from_the_environment_and_are_required(path: Path) -> None:
    secrets = re.findall(r"\$\{(\w+)([^}]*)\}", path.read_text())
    assert {name for name, _ in secrets} >= {"EVERWORK_API_KEY"}
    for name in {name for name, _ in secrets}:
        assert (name, f":?set {name}") in secrets


@every_file
def test_whoever_needs_a_store_waits_for_it_and_all_data_is_in_volumes(path: Path) -> None:
    content = documents(path)[0]
    for name, found in content["services"].items():
        for needed, condition in found.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}, name
            assert "healthcheck" in content["services"][needed] or needed == "server"  # The image has one.
    named = {one.partition(":")[0] for found in content["services"].values() for one in found.get("volumes", [])}
    assert {one for one in named if not one.startswith(".")} == set(content["volumes"])


@every_file
def test_workers_are_given_the_time_that_the_documentation_says(path: Path) -> None:
    assert service(path, "workers")["stop_grace_period"] == f"{WORKER_STOP_SECONDS}s"
    assert _seconds(service(path, "server")["stop_grace_period"]) > 10


def _seconds(text: Any) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None
    return int(found[1])
