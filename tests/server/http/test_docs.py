"""The examples of the manual, in the order in which they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from everwork.server.http.app import OPERATIONS
from tests.server.http.serving import ROOT_KEY, Rest

MANUAL = Path(__file__).parents[3] / "docs" / "reference" / "rest.md"
PLACE = "http://127.0.0.1:27555"


class Curl(NamedTuple):
    """One command as its reader would type it."""

    method: str
    path: str
    headers: dict[str, str]
    body: str | None

    @classmethod
    def parse(cls, line: str) -> Curl:
        words = iter(shlex.split(line.replace("$KEY", ROOT_KEY))[1:])
        said: dict[str, Any] = {"headers": {}}
        for word in words:
            match word:
                case "-X":
                    said["method"] = next(words)
                case "-H":
                    name, _, value = next(words).partition(": ")
                    said["headers"][name] = value
                case "-d":
                    said["body"] = next(words)
                case _:
                    said["path"] = word.removeprefix(PLACE)
        method = said.get("method", "POST" if "body" in said else "GET")
        return cls(method, said["path"], said["headers"], said.get("body"))


def examples() -> Iterator[str]:
    """Every command of the manual."""
    for block in re.findall(r"^```sh\n(.*?)^```", MANUAL.read_text(), re.DOTALL | re.MULTILINE):
        yield from (line for line in block.replace("\\\n", " ").splitlines() if line.startswith("curl "))


async def test_every_command_of_the_manual_works_on_a_fresh_store(local: Rest) -> None:
    commands = [Curl.parse(line) for line in examples()]
    assert len(commands) > 20
    async with httpx.AsyncClient(base_url=local.url, verify=False) as reader:
        for one in commands:
            answer = await reader.request(one.method, one.path, headers=one.headers, content=one.body)
            assert answer.is_success, f"{one}: {answer.text}"


def test_the_manual_names_every_path() -> None:
    manual = MANUAL.read_text().replace("jobs/1", "jobs/{key}").replace("jobs/2", "jobs/{key}")
    manual = manual.replace("types/email-send", "types/{type}").replace("…/requeue", "/api/v1/jobs/{key}/requeue")
    assert [one.path for one in OPERATIONS if one.path not in manual] == []
