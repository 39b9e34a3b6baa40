"""The examples of the client's page run as they stand, against a real server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from everwork.client import Client
from everwork.core.states import State
from tests.app.waiting import until
from tests.client.server import KEY, ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"


@pytest.fixture
def examples(shared_server: ServerProcess) -> list[str]:
    """The page's programs, told of the test's server."""
    text = PAGE.read_text().replace("grpc://127.0.0.1:27500", shared_server.grpc_url).replace("YOUR-KEY", KEY)
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_first_example_runs_as_it_stands(examples: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(examples[0], PAGE.name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "{'sent': 'ada@example.org'}\n"


async def test_the_functions_of_the_page_do_what_it_says(
    examples: list[str], remote: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    page = defined(examples)
    await page["by_hand"](await with_jobs(remote, 3))
    assert [job.state for job in (await remote.page(type="email-send", limit=3)).jobs] == [State.COMPLETED] * 3
    stop = asyncio.Event()
    working = asyncio.create_task(page["work"](remote, stop))
    sent, refused = await remote.create("email-send", {"to": "a@b"}), await remote.create("email-send", {"to": "?"})
    assert await remote.result(sent.key) == {"sent": "a@b"}
    await until(lambda: is_rejected(remote, refused.key))
    stop.set()
    await working
    await page["tidy"](remote)
    assert f"{refused.key} no address ['reject']" in capsys.readouterr().out


async def test_the_blocking_example_runs(
    examples: list[str], remote: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(defined(examples)["report"])
    assert re.fullmatch(r"pending \d+\n", capsys.readouterr().out)


def test_every_verb_stands_on_the_page() -> None:
    text = PAGE.read_text()
    verbs = {name for name in vars(Client) if not name.startswith("_")} - {"open", "close"}
    assert {verb for verb in verbs if f"`{verb}" not in text} == set()


def defined(examples: list[str]) -> dict[str, Any]:
    """What the page defines, taken together; only its first example does something at once."""
    names: dict[str, Any] = {"__name__": "page"}
    for example in examples:
        exec(compile(example.replace("asyncio.run(main())", ""), PAGE.name, "exec"), names)
    return names


async def with_jobs(client: Client, jobs: int) -> Client:
    await client.create_many([("email-send", {"to": f"{n}@example.org"}) for n in range(jobs)])
    return client


async def is_rejected(client: Client, key: int) -> bool:
    return (await client.get(key)).rejected
