"""shown_url: a URL is shown, a password never."""

from __future__ import annotations

import pytest

from everwork.engines.urls import shown_url


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
