"""Everwork in a Flask application: its context around every call of a handler, and its command."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from flask import Flask, current_app, g

from everwork import Everwork
from everwork.core.states import State
from everwork.exceptions import BadConfiguration
from everwork.flask import init
from everwork.testing import rehearse


class Site(NamedTuple):
    """A Flask application, its jobs, and the threads in which its contexts ended."""

    flask: Flask
    app: Everwork
    torn_down: list[int]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    flask, app = Flask("shop"), Everwork(f"sqlite:///{tmp_path}/jobs.db")
    torn_down: list[int] = []

    @flask.teardown_appcontext
    def note(_error: BaseException | None) -> None:
        torn_down.append(threading.get_ident())

    init(app, flask)
    return Site(flask, app, torn_down)


def test_a_plain_handler_has_a_context_of_its_own_in_its_thread(site: Site) -> None:
    threads: list[int] = []

    @site.app.job("mail-send")
    def send(to: str) -> str:
        assert "to" not in g
        g.to = to
        threads.append(threading.get_ident())
        return current_app.name

    with rehearse(site.app) as stage:
        keys = [site.app.sync.enqueue("mail-send", to=to) for to in ("ada", "bob")]
        stage.drain(raise_errors=True)
        assert [site.app.sync.result(key) for key in keys] == ["shop", "shop"]
    assert site.torn_down == threads
    assert threading.get_ident() not in threads


async def test_an_async_handler_has_one_too(site: Site) -> None:
    @site.app.job("mail-send")
    async def send() -> str:
        return current_app.name

    async with rehearse(site.app) as stage:
        key = await site.app.enqueue("mail-send")
        await stage.drain(raise_errors=True)
        assert await site.app.result(key) == "shop"
    assert len(site.torn_down) == 1


def test_a_view_enqueues_and_the_command_runs_the_workers(site: Site) -> None:
    @site.app.job("mail-send")
    def send(to: str) -> str:
        site.app.stop()
        return f"{current_app.name} to {to}"

    @site.flask.post("/mails")
    def create() -> dict[str, int]:
        jobs: Everwork = current_app.extensions["everwork"]
        return {"job": jobs.sync.enqueue("mail-send", to="ada")}

    answer = site.flask.test_client().post("/mails").get_json()
    site.app.sync.close()
    result = site.flask.test_cli_runner().invoke(args=["everwork", "worker"])
    assert (result.exit_code, result.output) == (0, "")
    job = site.app.sync.get(answer["job"])
    assert (job.state, job.result) == (State.COMPLETED, "shop to ada")
    site.app.sync.close()


async def test_of_several_flask_applications_the_newest_counts(site: Site) -> None:
    @site.app.job("mail-send")
    async def send() -> str:
        return current_app.name

    init(site.app, Flask("newer"))
    async with rehearse(site.app) as stage:
        key = await site.app.enqueue("mail-send")
        await stage.drain(raise_errors=True)
        assert await site.app.result(key) == "newer"


def test_the_command_says_in_a_line_why_there_is_nothing_to_do(site: Site) -> None:
    result = site.flask.test_cli_runner().invoke(args=["everwork", "worker"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: there is nothing to run")


def test_mistakes_are_named(site: Site) -> None:
    wrong: Any = "shop"
    with pytest.raises(BadConfiguration, match="'shop' already has an Everwork application"):
        init(site.app, site.flask)
    with pytest.raises(BadConfiguration, match="init takes a Flask application, not 'shop'"):
        init(site.app, wrong)
    with pytest.raises(BadConfiguration, match="init takes an Everwork application, not 'shop'"):
        init(wrong, site.flask)
