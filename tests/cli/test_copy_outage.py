"""everwork copy, while the target's server dies: told in one line, and finished by the same command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from everwork.engines.open import open_engine
from tests.app.waiting import until
from tests.factories import a_new_job
from tests.servers import postgres_server, redis_server
from tests.stores import ENGINES

if TYPE_CHECKING:
    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli
    from tests.servers import Server

JOBS = 6_000


@pytest.fixture(params=[name for name in ENGINES if name != "sqlite"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, which keeps what it has accepted."""
    aof = ("--appendonly", "yes", "--appendfsync", "always")
    started = redis_server(*aof) if request.param == "redis" else postgres_server()
    yield started
    started.remove()


async def test_a_copy_whose_target_dies_is_finished_by_the_same_command(
    cli: Cli, engine: Engine, server: Server
) -> None:
    await engine.create([a_new_job(variables='{"a":"%s"}' % ("x" * 5_000)) for _ in range(JOBS)])
    target = open_engine(server.url)
    await target.open()
    copying = cli.start("copy", "sqlite:///everwork.db", server.url)
    await until(target.count)
    await target.close()
    server.kill()
    _, told = await asyncio.to_thread(copying.communicate)
    assert copying.returncode == 2
    assert told.splitlines()[-1].endswith("when it is back, run the same command again to continue")
    server.start()
    again = json.loads(cli("copy", "sqlite:///everwork.db", server.url, "--json").out)
    assert again["counts_agree"]
    assert (again["present"] + again["jobs"], again["present"] > 0) == (JOBS, True)
