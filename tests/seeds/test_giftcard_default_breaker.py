"""One setting gives every type a circuit breaker that has none of its own; without it there is none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.waiting import until
from tests.cli.conftest import DEADLINE_SECONDS, Cli

PROGRAM = """
from everwork import CircuitBreaker, Everwork

app = Everwork("sqlite:///everwork.db")
app.job("plain")(lambda: None)
app.job("own", breaker=CircuitBreaker(failures=9, seconds=90))(lambda: None)
"""
SETTINGS = """
breaker_failures = 3
breaker_seconds = 60

[types.never]
breaker_failures = "off"
max_running = 5
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command, in an empty directory."""
    return Cli(tmp_path)


def breakers(cli: Cli) -> dict[str, tuple[Any, Any]]:
    types = cli("types", "list", "--json").json["types"]
    policies = {one["type"]: one["policy"] or {} for one in types}
    return {type: (policy.get("breaker_failures"), policy.get("breaker_seconds")) for type, policy in policies.items()}


@contextmanager
def server(cli: Cli) -> Iterator[str]:
    with cli.start("serve", "--grpc-port", "0", "--http-port", "0", "--no-auth", "--json") as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['http_port']}"
        finally:
            process.terminate()


def test_without_the_setting_no_type_has_a_breaker_unless_its_code_says_so(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(PROGRAM)
    cli("tick", "shop")
    assert breakers(cli).get("plain", (None, None)) == (None, None)
    assert breakers(cli)["own"] == (9, 90)


def test_with_it_the_types_of_programs_have_one_except_where_code_or_file_say_otherwise(cli: Cli) -> None:
    (cli.folder / "shop.py").write_text(PROGRAM)
    (cli.folder / "everwork.toml").write_text(SETTINGS)
    cli("tick", "shop")
    assert breakers(cli) == {"plain": (3, 60), "own": (9, 90), "never": (None, None)}
    (cli.folder / "everwork.toml").write_text('breaker_failures = "off"\n')
    cli("tick", "shop")
    assert breakers(cli) == {"plain": (None, None), "own": (9, 90), "never": (None, None)}


async def test_types_that_only_clients_use_have_it_as_well_and_it_opens_after_three_failures(cli: Cli) -> None:
    (cli.folder / "everwork.toml").write_text(SETTINGS)
    with server(cli) as place:
        async with httpx.AsyncClient(base_url=place, timeout=DEADLINE_SECONDS) as client:
            await client.post("/api/v1/jobs", json=[{"type": "card"}] * 3)

            async def has_breaker() -> bool:
                return (await asyncio.to_thread(breakers, cli)).get("card") == (3, 60)

            await until(has_breaker, DEADLINE_SECONDS)
            for _ in range(3):
                asked = {"type": "card", "worker": "w1", "max_jobs": 1}
                [job] = (await client.post("/api/v1/jobs/activate", json=asked)).json()["jobs"]
                failure = {"error_message": "no answer", "by_policy": True}
                await client.put(f"/api/v1/jobs/{job['key']}/fail", json=failure)
            [card] = [one for one in (await client.get("/api/v1/types")).json()["types"] if one["type"] == "card"]
            assert card["breaker"] == "open"
