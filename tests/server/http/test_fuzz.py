"""Thousands of requests that schemathesis makes up from the API's own description."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.server.http.serving import JOBS, ROOT_KEY
from tests.stores import EVERYTHING, at_length, url_of

REQUESTS_MIN: Final = {"server": at_length(5_000, 1_500), "mounted": at_length(5_000, 100)}
PHASES: Final = {
    "server": "examples,coverage,fuzzing",
    "mounted": "examples,coverage,fuzzing" if EVERYTHING else "examples,fuzzing",
}
"""Below a path it is the same API: what covers its bounds takes most of the time."""
EXAMPLES: Final = {"server": at_length(60, 5), "mounted": at_length(60, 2)}
"""How many requests are made up for each operation, besides those that cover its bounds."""
FUZZ_SECONDS_MAX: Final = 400
KEY: Final = {"X-API-Key": ROOT_KEY}


@pytest.fixture
def server(tmp_path: Path, way: str) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own; or a web application that has the API below a path."""
    command = [sys.executable, "-m", "tests.server.http.program", url_of("sqlite", tmp_path), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def fuzz(url: str, folder: Path, way: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis to its end."""
    return subprocess.run(
        [
            *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}/openapi.json"),
            *("--header", f"X-API-Key: {ROOT_KEY}", "--generation-with-security-parameters", "false"),
            *("--phases", PHASES[way], "--max-examples", str(EXAMPLES[way]), "--seed", "1", "--no-shrink"),
            # JSON schema has no word for printable characters, nor for what two fields say together.
            *("--exclude-checks", "positive_data_acceptance"),
            *("--generation-database", "none", "--suppress-health-check", "all", "--warnings", "off"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=FUZZ_SECONDS_MAX,
        check=False,
    )


def calls(client: httpx.Client) -> dict[str, int]:
    """How many requests the server has answered, by status."""
    if client.base_url.path != "/":
        return dict(client.get(client.base_url.join("/calls")).raise_for_status().json())
    found: dict[str, int] = {}
    for status, count in re.findall(r'calls_total\{.*status="(\d+)"\} (\d+)', client.get("/metrics").text):
        found[status] = found.get(status, 0) + int(count)
    return found


def all_jobs(client: httpx.Client, **query: Any) -> Iterator[dict[str, Any]]:
    """Every job, page by page."""
    cursor: dict[str, str] = {}
    while True:
        page = client.get(JOBS, params={**query, **cursor, "limit": 1000}).raise_for_status().json()
        yield from page["jobs"]
        if page["next"] is None:
            return
        cursor = {"cursor": page["next"]}


@pytest.mark.timeout(FUZZ_SECONDS_MAX + 60)
@pytest.mark.parametrize("way", PHASES)
def test_whatever_is_sent_the_answer_is_as_described(server: subprocess.Popen[str], way: str, tmp_path: Path) -> None:
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    with httpx.Client(base_url=url, headers=KEY, timeout=30, verify=False) as client:
        client.post(JOBS, json=[{"type": "email-send"} for _ in range(200)]).raise_for_status()
        client.post(f"{JOBS}/activate", json={"type": "email-send", "worker": "w", "max_jobs": 20}).raise_for_status()
        done = fuzz(url, tmp_path, way)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
        answered = calls(client)
        assert sum(answered.values()) >= REQUESTS_MIN[way]
        assert not [status for status in answered if status.startswith("5")]
        assert server.poll() is None
        held = list(all_jobs(client, state="processing"))
        assert all(job["deadline"] is not None and job["worker"] for job in held)
        assert len(list(all_jobs(client))) == client.get("/api/v1/stats").json()["total"]
