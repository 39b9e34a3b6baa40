"""tx= takes connections of Django's, on PostgreSQL and SQLite; a stage and after_commit wait for their commit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import django.conf
import pytest
from django.db import connections, transaction
from django.utils.connection import ConnectionProxy

from everwork import Everwork
from everwork.exceptions import InvalidInput
from everwork.testing import rehearse
from tests.stores import ENGINES, url_of

ON = [name for name in ("sqlite", "postgres") if name in ENGINES]


class Undo(Exception):
    """Rolls a block back."""


@pytest.fixture(params=ON)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def own(url: str) -> Iterator[Any]:
    """Django's connection to the database that holds the jobs, too."""
    with django_connection(url) as connection:
        yield connection


@contextmanager
def django_connection(url: str) -> Iterator[Any]:
    if not django.conf.settings.configured:
        django.conf.settings.configure()
        django.setup()
    place = urlsplit(url)
    settings = {
        "ENGINE": f"django.db.backends.{'sqlite3' if place.scheme == 'sqlite' else 'postgresql'}",
        "NAME": place.path[1:],
        "HOST": place.hostname or "",
        "PORT": place.port or "",
        "USER": place.username or "",
        "PASSWORD": place.password or "",
    }
    connections.databases["own"] = connections.configure_settings({"default": {}, "own": settings})["own"]
    yield connections["own"]
    connections["own"].close()
    del connections["own"], connections.databases["own"]


def test_the_jobs_of_an_atomic_block_are_there_if_it_commits(url: str, own: Any) -> None:
    with Everwork(url).sync as app:
        with transaction.atomic(using="own"):
            kept = app.within(own).enqueue("letter-send", to="ada")
            with suppress(Undo), transaction.atomic(using="own"):
                app.within(own).enqueue("letter-send", to="undone")
                raise Undo
        with suppress(Undo), transaction.atomic(using="own"):
            app.within(ConnectionProxy(connections, "own")).enqueue("letter-send", to="never")
            raise Undo
        assert [job.key for job in app.list()] == [kept]


def test_a_connection_that_is_in_no_atomic_block_is_refused(url: str, own: Any) -> None:
    problem = r"^tx: must be in a transaction: use `with transaction.atomic\(\)`$"
    with Everwork(url).sync as app, pytest.raises(InvalidInput, match=problem):
        app.within(own).enqueue("letter-send", to="ada")


def test_after_commit_waits_for_the_outermost_block(tmp_path: Path, own: Any) -> None:
    with Everwork(f"sqlite:///{tmp_path}/other.db").sync as app:
        with transaction.atomic(using="own"):
            app.after_commit(own).enqueue("letter-send", to="ada")
            with suppress(Undo), transaction.atomic(using="own"):
                app.after_commit(own).enqueue("letter-send", to="undone")
                raise Undo
            assert list(app.list()) == []
        app.after_commit(own).enqueue("letter-send", to="bea")
        assert [job.variables["to"] for job in app.list()] == ["bea", "ada"]


def test_the_connection_proxy_is_that_of_the_thread_which_enqueues(tmp_path: Path, own: Any) -> None:
    def request() -> None:
        with suppress(Undo), transaction.atomic(using="own"):
            jobs.enqueue("letter-send", to="never")
            raise Undo
        connections["own"].close()

    with Everwork(f"sqlite:///{tmp_path}/other.db").sync as app, ThreadPoolExecutor(1) as threads:
        jobs = app.after_commit(ConnectionProxy(connections, "own"))  # Once for all threads, as a module may.
        threads.submit(request).result()
        assert (list(app.list()), own.in_atomic_block) == ([], False)


def test_a_stage_takes_them_wherever_they_are(own: Any) -> None:
    app = Everwork("redis://127.0.0.1:1/")
    with rehearse(app) as stage:
        with transaction.atomic(using="own"):
            app.sync.within(own).enqueue("letter-send", to="ada")
            with suppress(Undo), transaction.atomic(using="own"):
                app.sync.using(tx=own, dedupe_key="d").enqueue("letter-send", to="undone")
                raise Undo
            again = app.sync.using(tx=own, dedupe_key="d").enqueue("letter-send", to="bea")
            assert (stage.jobs(), again.deduplicated) == ([], False)
        assert [job.variables["to"] for job in stage.jobs()] == ["ada", "bea"]
