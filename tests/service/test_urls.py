"""A URL is shown, a password never; not even a part of one that nobody has encoded."""

from __future__ import annotations

import pytest

from everwork import PostgresBackend
from everwork.codec.urls import require_encoded, shown_url, store_name
from everwork.engines.open import open_engine
from everwork.exceptions import BadConfiguration


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@db:5432/jobs?schema=a", "postgresql://ann:***@db:5432/jobs?schema=a"),
        ("redis://:s3cret@db/0", "redis://:***@db/0"),
        ("redis://:s3/cr?e@t#1@db/0", "redis://:***@db/0"),
        ("redis://db/0?a=1&password=s3cret&b=2", "redis://db/0?a=1&password=***&b=2"),
        ("postgresql://db/jobs?sslpassword=s3cret", "postgresql://db/jobs?sslpassword=***"),
        ("postgresql://ann@db/jobs", "postgresql://ann@db/jobs"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_everything_but_the_password_is_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "redis", "rediss", "redis+cluster", "mysql"])
@pytest.mark.parametrize(
    "rest",
    [
        "//ann:s3/cret@db/0",
        "//ann:s3?cret@db/0",
        "//ann:s3#cret@db/0",
        "//ann:s3@cret@db/0",
        "//ann:s3[cret@db/0",
        "//ann:123/s3cret@db/0",
        "//ann:s3\u2100cret@db",
        "//ann:s3cret",
        "/:s3cret@db",
    ],
)
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(scheme: str, rest: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        open_engine(f"{scheme}:{rest}")
    assert f"must look like {scheme}://user:password@host:port/name" in str(refused.value)
    assert "s3" not in str(refused.value)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://db",
        "redis://:p%40ss@db:6379/0",
        "redis+cluster://db1:1,db2:2",
        "redis+unix:///run/a@b.sock",
        "postgresql:///jobs",
        "postgresql://ann:x@[::1]:5432/jobs?application_name=a@b",
        "postgresql://ann@db1:1,db2:2/jobs",
        "postgresql://db:5432",
    ],
)
def test_what_is_written_as_it_should_be_is_taken(url: str) -> None:
    require_encoded(url)


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("postgres://ann@db/jobs", "postgresql://ann@db/jobs"),
        ("postgresql+asyncpg://ann@db/jobs?schema=a", "postgresql://ann@db/jobs?schema=a"),
        ("POSTGRESQL+psycopg://ann@db/jobs", "postgresql://ann@db/jobs"),
        ("postgresql+psycopg2://ann@db/jobs", "postgresql://ann@db/jobs"),
        ("postgresql+asyncpg://ann@db/jobs?ssl=require", "postgresql://ann@db/jobs?sslmode=require"),
        ("sqlite+aiosqlite:///a@b.db", "sqlite:///a@b.db"),
        ("sqlite+pysqlite:////tmp/jobs.db", "sqlite:////tmp/jobs.db"),
        ("redis+socket:///run/a@b.sock", "redis+unix:///run/a@b.sock"),
    ],
)
def test_a_url_copied_from_sqlalchemy_or_celery_is_the_same_store(url: str, known: str) -> None:
    assert (open_engine(url)._url, store_name(url)) == (open_engine(known)._url, store_name(known))  # type: ignore[attr-defined]


def test_a_driver_that_nobody_knows_is_refused_and_a_password_beside_one_is_not_shown() -> None:
    with pytest.raises(BadConfiguration, match=r"unknown scheme 'postgresql\+other'; it must start with one of"):
        open_engine("postgresql+other://ann:s3cret@db/jobs")
    assert shown_url("postgresql+asyncpg://ann:s3cret@db/jobs") == "postgresql+asyncpg://ann:***@db/jobs"
    assert PostgresBackend("postgresql+psycopg://ann:s3cret@db/jobs").url.startswith("postgresql+psycopg:")
    with pytest.raises(BadConfiguration, match=r"must start with postgresql://, not with 'sqlite\+aiosqlite'$"):
        PostgresBackend("sqlite+aiosqlite:///jobs.db")
