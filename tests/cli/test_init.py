"""everwork init: what it writes runs, is tested, and can be deployed; what exists is not touched."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from everwork import Everwork
from everwork.cli.output import command_name
from everwork.cli.scaffold import CHOICES, NAMES, write_project
from everwork.engines.open import open_engine
from everwork.exceptions import InvalidInput
from tests.cli.conftest import DEADLINE_SECONDS
from tests.cli.test_worker import running
from tests.deploy.files import documents, service

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


async def test_a_new_project_passes_its_tests_and_runs_a_job(cli: Cli) -> None:
    answer = cli("init", "shop")
    assert answer.out.splitlines()[0] == f"Created {', '.join(f'shop/{name}' for name in NAMES)}"
    assert [line.split("  #")[0].strip() for line in answer.out.splitlines()[3:]][:1] == ["cd shop"]
    shop = type(cli)(cli.folder / "shop")
    assert "2 passed" in _tested(shop)
    key = shop("jobs", "create", "greet", "--var", "name=Ada", "--json").json["key"]
    with running(shop, "jobs"):
        assert await _result(shop, int(key)) == "Hello, Ada!"
    assert shop("types", "policy", "greet", "--json").json["set"]["max_running"] == 50


def _tested(cli: Cli) -> str:
    """The output of pytest in the folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        command, cwd=cli.folder, env=cli.environment(), capture_output=True, text=True, timeout=DEADLINE_SECONDS,
        check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


async def _result(cli: Cli, key: int) -> object:
    async with Everwork(f"sqlite:///{cli.file}") as app:
        return await app.result(key, timeout=DEADLINE_SECONDS)


def test_a_folder_that_cannot_be_written_is_named(cli: Cli) -> None:
    (cli.folder / "file").touch()
    with pytest.raises(InvalidInput, match=r"^folder: must be a folder that can be written: .*file: File exists$"):
        write_project(cli.folder / "file", "sqlite")


def test_every_engine_has_a_valid_compose_file_and_the_same_url_everywhere(cli: Cli) -> None:
    for engine, choice in CHOICES.items():
        assert cli("init", engine, "--engine", engine).code == 0
        folder = cli.folder / engine
        open_engine(choice.url)
        assert tomllib.loads((folder / "everwork.toml").read_text())["engine"] == choice.url
        assert choice.url in (folder / "jobs.py").read_text()
        assert not [name for name in NAMES if re.search(r"@[A-Z]+@", (folder / name).read_text())]
    composes = [cli.folder / engine / "compose.yaml" for engine in CHOICES]
    checker = Path(sys.executable).parent / "check-jsonschema"
    command: list[str | Path] = [checker, "--builtin-schema", "vendor.compose-spec", *composes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for compose in composes:
        _check_compose(compose)


def _check_compose(compose: Path) -> None:
    """As the files in deploy/: no privileges, secrets from the environment, data in volumes."""
    for name in ("server", "worker"):
        found = service(compose, name)
        assert (found["read_only"], found["cap_drop"]) == (True, ["ALL"])
        assert found["security_opt"] == ["no-new-privileges:true"]
    content = documents(compose)[0]
    published = [port for one in content["services"].values() for port in one.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published)
    [store] = content["volumes"]
    assert content["services"][store]["healthcheck"]
    assert f"{store.upper()}_PASSWORD:?set " in compose.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_exists_is_named_and_nothing_is_written(cli: Cli, name: str) -> None:
    (cli.folder / name).write_text("mine")
    answer = cli("init")
    assert (answer.code, answer.complaint) == (
        2,
        f"{name} already exists; nothing was written. Use another folder: everwork init FOLDER",
    )
    assert [file.name for file in cli.folder.iterdir()] == [name]
    assert (cli.folder / name).read_text() == "mine"


def test_an_engine_that_does_not_exist(cli: Cli) -> None:
    assert cli("init", "--engine", "mysql").complaint == "engine: must be one of sqlite, postgres, redis, not 'mysql'"


def test_a_command_is_shown_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "my bin" / "everwork"
    command.parent.mkdir()
    command.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(command)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_name() == f"'{command}'"
    monkeypatch.chdir(tmp_path)
    assert command_name() == "'my bin/everwork'"
    monkeypatch.setenv("PATH", str(command.parent))
    assert command_name() == "everwork"
    monkeypatch.setattr(sys, "argv", ["/somewhere/everwork/__main__.py"])
    assert command_name() == "everwork"


def test_up_names_the_engine_in_the_commands_that_it_shows(cli: Cli) -> None:
    shown = cli("up", "--engine", "sqlite:///other.db", "--grpc-port", "0", "--http-port", "0", "--seconds", "0.1").out
    assert "For another: everwork login --engine sqlite:///other.db\n" in shown
    assert "everwork keys create --name ci --permission jobs --engine sqlite:///other.db\n" in shown
