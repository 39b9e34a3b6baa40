"""`app.tick_route()`: a tick by HTTP, behind a secret."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from everwork import Everwork
from everwork.app.tick_route import TickRoute
from everwork.exceptions import BadConfiguration, InvalidInput

SECRET = "a-secret-of-some-length"
BEARER = {"Authorization": f"Bearer {SECRET}"}


def caller(route: Any) -> httpx.AsyncClient:
    """Calls the route as mounted at /cron in a web application."""
    web = Starlette(routes=[Route("/cron", route)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://cron.test")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_call_with_the_secret_runs_a_tick_and_says_what_it_did(app: Everwork, method: str) -> None:
    app.job("work")(lambda: None)
    await app.enqueue_many([("work", {})] * 3)
    async with caller(app.tick_route(secret=SECRET, max_jobs=2)) as client:
        answer = await client.request(method, "/cron", headers=BEARER)
    assert answer.status_code == 200
    assert answer.json() == {"ran": 2, "completed": 2, "failed": 0, "retried": 0, "lost": 0, "released": 0}
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {SECRET}x"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": SECRET},
        [("Authorization", f"Bearer {SECRET}"), ("Authorization", f"Bearer {SECRET}")],
    ],
)
async def test_a_call_without_the_secret_is_refused_and_runs_nothing(app: Everwork, headers: Any) -> None:
    app.job("work")(lambda: None)
    key = await app.enqueue("work")
    async with caller(app.tick_route(secret=SECRET)) as client:
        answer = await client.post("/cron", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert SECRET not in answer.text
    assert (await app.get(key)).attempts == 0


async def test_the_secret_is_the_one_of_the_environment_unless_one_is_given(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job("work")(lambda: None)
    monkeypatch.setenv("CRON_SECRET", SECRET)
    async with caller(app.tick_route()) as client:
        assert (await client.get("/cron", headers=BEARER)).status_code == 200
        assert (await client.get("/cron")).status_code == 401


async def test_a_route_without_a_secret_must_be_opened_explicitly(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.job("work")(lambda: None)
    monkeypatch.delenv("CRON_SECRET", raising=False)
    with pytest.raises(BadConfiguration, match="tick_route: needs a secret: set CRON_SECRET or pass secret="):
        app.tick_route()
    async with caller(app.tick_route(public=True)) as client:
        assert (await client.get("/cron")).status_code == 200


async def test_bad_options_are_refused_by_name_and_a_secret_is_never_quoted(
    app: Everwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("short", "with a space in it, but long", "schlüssel-schlüssel", "", 17):
        bad: Any = wrong
        with pytest.raises(BadConfiguration, match="secret must be at least 16 printable ASCII characters") as raised:
            app.tick_route(secret=bad)
        assert not wrong or not isinstance(wrong, str) or wrong not in str(raised.value)
    monkeypatch.setenv("CRON_SECRET", "short")
    with pytest.raises(BadConfiguration, match="CRON_SECRET must be at least 16"):
        app.tick_route()
    with pytest.raises(BadConfiguration, match="either secret= or public=True"):
        app.tick_route(secret=SECRET, public=True)
    with pytest.raises(InvalidInput, match="max_jobs: must be a whole number"):
        app.tick_route(secret=SECRET, max_jobs=0)


async def test_other_methods_are_refused(app: Everwork) -> None:
    async with caller(app.tick_route(secret=SECRET)) as client:
        answer = await client.delete("/cron", headers=BEARER)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_calls_at_the_same_time_never_run_a_job_twice(app: Everwork) -> None:
    ran: list[int] = []

    @app.job("work", concurrency=5)
    async def work(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0)

    await app.enqueue_many([("work", {"number": number}) for number in range(40)])
    async with caller(app.tick_route(secret=SECRET, max_jobs=20)) as client:
        answers = await asyncio.gather(*(client.post("/cron", headers=BEARER) for _ in range(4)))
    assert sum(answer.json()["completed"] for answer in answers) == 40
    assert sorted(ran) == list(range(40))


async def test_an_unavailable_store_is_a_503_without_details_and_an_application_without_jobs_a_500() -> None:
    away = Everwork("postgresql://nobody:pass-word@127.0.0.1:1/nowhere")
    away.job("work")(lambda: None)
    async with caller(away.tick_route(secret=SECRET)) as client:
        answer = await client.post("/cron", headers=BEARER)
    await away.close()
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "5")
    assert "127.0.0.1" not in answer.text
    empty = Everwork("sqlite:///:memory:")
    async with caller(empty.tick_route(secret=SECRET)) as client:
        assert (await client.post("/cron", headers=BEARER)).status_code == 500


async def test_served_on_its_own_it_closes_the_application_at_the_end() -> None:
    steps: list[str] = []
    sent: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def close() -> None:
        steps.append("closed")

    route = TickRoute(Everwork("sqlite:///:memory:").run_once, close, public=True)
    await route({"type": "lifespan"}, receive, send)
    await route({"type": "websocket"}, receive, send)
    assert steps == ["closed"]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
