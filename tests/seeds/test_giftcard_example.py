"""examples/giftcards: the whole system in real processes, as its README says."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx

from everwork.testing import FailTypes
from giftcards.app import EMAIL, GiftCards
from giftcards.settings import Settings
from tests.app.waiting import until
from tests.cli.conftest import COMMAND, DEADLINE_SECONDS
from tests.servers import free_port
from tests.stores import VirtualClock

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "the-cron-secret-of-the-tests"
DEAD = """
SELECT id, correlation_id, stage, attempts, status, scheduled_at, last_error
FROM giftcard_jobs
WHERE status = 'error'
ORDER BY updated_at DESC;
"""


def environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("EVERWORK_", "GIFTCARD_"))}
    return own | {"PYTHONPATH": str(EXAMPLES)} | more


def run(folder: Path, *command: str, **more: str) -> str:
    """What a program prints, which must end well."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@contextmanager
def served(folder: Path, **more: str) -> Iterator[str]:
    """The address of `python -m giftcards serve`."""
    port = free_port()
    command = [sys.executable, "-m", "giftcards", "serve", "--port", str(port)]
    with subprocess.Popen(
        command, cwd=folder, env=environment(CRON_SECRET=SECRET, **more), stderr=subprocess.DEVNULL
    ) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


async def answers(client: httpx.AsyncClient) -> bool:
    with suppress(httpx.TransportError):
        return (await client.get("/api/cron")).status_code == 401
    return False


def test_one_command_orders_cards_retries_what_fails_and_sends_them_all(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, "-m", "giftcards").splitlines()
    assert printed[0] == "cron run: 9 ran, 8 completed, 1 will be retried"
    assert "| email | 1 | queued |" in printed[2]
    assert [line.split(":")[0] for line in printed[-3:]] == ["Kate Rodgers", "Omar Haddad", "Kateryna Bondar"]
    assert printed[-3].split(": ")[1].startswith("KATE")
    assert run(tmp_path, sys.executable, "-m", "giftcards", "jobs") == "queued: 0\ndead letters: 0\n"


async def test_orders_come_by_http_and_a_cron_service_that_has_the_secret_lets_ten_jobs_run(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        async with httpx.AsyncClient(base_url=place, timeout=DEADLINE_SECONDS) as client:
            await until(lambda: answers(client), DEADLINE_SECONDS)
            orders = [
                (await client.post("/giftcards", json={"customer": name, "email": "c@example.com"})).json()
                for name in ("Kate Rodgers", "Omar", "Zoe", "Ada")
            ]
            assert (await client.post("/giftcards", json={"customer": "Kate"})).status_code == 422
            bearer = {"Authorization": f"Bearer {SECRET}"}
            runs = [(await client.get("/api/cron", headers=bearer)).json()["completed"] for _ in range(2)]
            assert runs == [10, 2]
            card = (await client.get(f"/giftcards/{orders[0]['correlation_id']}")).json()
            assert card["personal_code"].startswith("KATE")
            assert [job["status"] for job in card["jobs"]] == ["completed"] * 3
            assert (await client.get("/giftcards/nobody")).status_code == 404


async def test_jobs_that_failed_or_wait_for_an_attempt_are_requeued_by_the_command_line_and_sent_by_a_tick(
    tmp_path: Path,
) -> None:
    store, clock = f"sqlite:///{tmp_path / 'everwork.db'}", VirtualClock(time.time_ns() // 1_000_000)
    mail_is_down = FailTypes({EMAIL: OSError("the mail server is down")})
    async with GiftCards(Settings(store), clock=clock, middleware=[mail_is_down]) as cards:
        await cards.order("Kate Rodgers", "kate@example.com")
        for _ in range(5):
            await cards.app.run_once()
            clock.advance(seconds=100)
        await cards.order("Omar Haddad", "omar@example.com")
        assert (await cards.app.run_once()).retried == 1
    with closing(sqlite3.connect(tmp_path / "everwork.db")) as connection:
        [(dead, _, stage, attempts, status, _, _)] = connection.execute(DEAD).fetchall()
        assert (stage, attempts, status) == ("email", 5, "error")
        [(waiting,)] = connection.execute("SELECT id FROM giftcard_jobs WHERE status = 'queued'").fetchall()
        await asyncio.to_thread(run, tmp_path, COMMAND, "jobs", "requeue", str(dead), str(waiting))
        after = "SELECT status, attempts, last_error FROM giftcard_jobs WHERE stage = 'email'"
        assert connection.execute(after).fetchall() == [("queued", 0, None)] * 2
        await asyncio.to_thread(run, tmp_path, COMMAND, "types", "reset-breaker", EMAIL)
        ticked = await asyncio.to_thread(run, tmp_path, COMMAND, "tick", "giftcards.app:make_app", "--json")
        assert json.loads(ticked)["completed"] == 2
        assert [row[0] for row in connection.execute(after)] == ["completed"] * 2
