"""What is deployed works: the commands of the Compose files run a job, and their Redis is one that keeps jobs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from everwork import Everwork
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration
from tests.app.waiting import until
from tests.deploy.files import DEPLOY, service
from tests.forked import ForkedPopen, run_forked
from tests.servers import RedisServer, free_port, redis_server
from tests.stores import url_of

SECONDS_MAX: Final = 60


@pytest.mark.every_engine
async def test_the_commands_of_a_compose_file_serve_are_healthy_and_run_a_job(engine_name: str, tmp_path: Path) -> None:
    file = DEPLOY / "compose" / f"{engine_name}.yaml"
    place = _Place(file, url_of(engine_name, tmp_path), tmp_path)
    with place.started("server"), place.started("workers"):
        await until(lambda: place.is_healthy(["everwork", "probe"]), SECONDS_MAX)
        await until(lambda: place.is_healthy(service(file, "workers")["healthcheck"]["test"][1:]), SECONDS_MAX)
        async with Everwork(place.url) as app:
            key = await app.enqueue("email-send", to="ada@example.org")
            assert await app.result(key, timeout=SECONDS_MAX) == {"sent_to": "ada@example.org"}


async def test_the_redis_conf_keeps_jobs_and_is_accepted_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with _ConfiguredRedis() as server:
        health = await _opened(server)
    assert health.durability.value == "process-crash"
    assert (health.details["maxmemory_policy"], health.details["appendfsync"]) == ("noeviction", "everysec")
    assert caplog.records == []


async def test_a_redis_that_may_evict_jobs_is_refused_with_the_remedy() -> None:
    with (
        redis_server("--maxmemory", "512mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "yes") as server,
        pytest.raises(BadConfiguration, match="which loses jobs; run: CONFIG SET maxmemory-policy noeviction"),
    ):
        await _opened(server)


class _ConfiguredRedis(RedisServer):
    """A server that loads the file, from a folder that its user can enter."""

    def _command(self) -> list[str | Path]:
        file = self.folder / "redis.conf"
        file.write_text((DEPLOY / "compose/redis.conf").read_text())
        return [*super()._command(), "--include", file]


class _Place:
    """A Compose file without containers: its commands, with the store and the ports of a test."""

    def __init__(self, file: Path, url: str, folder: Path) -> None:
        self._file = file
        self.url = url
        self._folder = folder
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("EVERWORK_")} | {
            "EVERWORK_ENGINE": url,
            "EVERWORK_API_KEY": "a-key-of-the-test",
            "EVERWORK_GRPC_PORT": str(free_port()),
            "EVERWORK_HTTP_PORT": str(free_port()),
        }

    @contextmanager
    def started(self, name: str) -> Iterator[None]:
        """A service, until the end of the block; it must then stop by SIGTERM, with exit code 0."""
        words = service(self._file, name)["command"]
        command = ["everwork", *(str(self._file.parent / "workers") if word == "/app" else word for word in words)]
        with ForkedPopen(command, cwd=self._folder, env=self._environ, stderr=subprocess.PIPE) as process:
            try:
                yield
                process.terminate()
                process.communicate(timeout=SECONDS_MAX)
                assert process.returncode == 0
            finally:
                process.kill()

    def is_healthy(self, probe: list[str]) -> bool:
        """What a health check of the service says."""
        done = run_forked(probe[0], probe[1:], cwd=self._folder, env=self._environ)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode == 0


async def _opened(server: RedisServer) -> Any:
    engine = open_engine(server.url)
    try:
        await engine.open()
        return await engine.health()
    finally:
        await engine.close()
