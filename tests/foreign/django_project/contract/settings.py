"""The shop's settings with PostgreSQL and SQLite beside each other, and a backend for each way to be configured."""

import os
from typing import Any

from shop.settings import *  # noqa: F403 - as Django's settings are extended
from shop.settings import INSTALLED_APPS, _postgres, _sqlite

INSTALLED_APPS = [*INSTALLED_APPS, "contract"]
DATABASES = {
    "default": {**_postgres(os.environ["CONTRACT_POSTGRES"]), "OPTIONS": {"application_name": "django"}},
    "lite": {**_sqlite, "NAME": os.environ["CONTRACT_SQLITE"]},
}
QUEUES = ["default", "high", "mail"]


def _backend(**options: Any) -> dict[str, Any]:
    return {"BACKEND": "everwork.django.EverworkBackend", "QUEUES": QUEUES, "OPTIONS": options}


TASKS = {
    "default": _backend(),
    "lite": _backend(database="lite", cron={"contract.tasks.tick": "* * * * * *"}),
    # The same database by another name for its host: only the server knows.
    "same": _backend(url=os.environ["CONTRACT_POSTGRES"].replace("127.0.0.1", "localhost"), max_attempts=2),
    "other": _backend(url=os.environ["CONTRACT_OTHER"]),
    "apart": _backend(url=f"sqlite:///{os.environ['CONTRACT_SQLITE']}-apart"),
    "unreachable": _backend(url="postgresql://nobody@127.0.0.1:1/nothing"),
}
