"""The Dockerfile, as far as it can be read; `make image` builds it and runs what comes out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from tests.deploy.files import ROOT

TEXT: Final = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS: Final[list[tuple[str, str]]] = re.findall(r"^([A-Z]+) (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


def _last(instruction: str) -> str:
    return [value for name, value in INSTRUCTIONS if name == instruction][-1]


def test_both_stages_are_built_on_the_base_that_the_caller_chooses() -> None:
    assert [value for name, value in INSTRUCTIONS if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    assert INSTRUCTIONS[0] == ("ARG", "BASE=docker.io/library/python:3.13-slim-trixie")


def test_it_runs_under_an_init_as_a_user_with_a_number_and_is_probed() -> None:
    assert _last("USER") == "10001:10001"
    assert json.loads(_last("ENTRYPOINT")) == ["tini", "--", "everwork"]
    assert _last("STOPSIGNAL") == "SIGTERM"
    assert json.loads(_last("HEALTHCHECK").partition("CMD ")[2]) == ["everwork", "probe"]


def test_the_index_of_packages_is_a_secret_of_one_step() -> None:
    [step] = [value for name, value in INSTRUCTIONS if name == "RUN" and "pip install" in value]
    assert step.startswith("--mount=type=secret,id=pip,")
    assert "index" not in "".join(value for name, value in INSTRUCTIONS if name in ("ARG", "ENV"))


def test_the_build_gets_the_source_and_nothing_else() -> None:
    [everything, *kept] = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in "#"]
    assert everything == "*"
    allowed = {line[1:] for line in kept if line.startswith("!")}
    copied = [value.split()[:-1] for name, value in INSTRUCTIONS if name == "COPY" and not value.startswith("--from")]
    assert allowed == {source for sources in copied for source in sources}
    assert all(Path(ROOT, name).exists() for name in allowed)
