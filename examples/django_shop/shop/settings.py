"""Settings: a SQLite file, or PostgreSQL if SHOP_POSTGRES names a database."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import django

BASE_DIR = Path(__file__).resolve().parents[1]
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only-for-this-example")
DEBUG = "SHOP_DEBUG" in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

INSTALLED_APPS = ["everwork.django", "shop"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")


def _postgres(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": parts.port or "",
    }


_sqlite = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ.get("SHOP_SQLITE", BASE_DIR / "shop.db"),
    # Transactions take the write lock when they begin; otherwise they can fail with "database is locked".
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}

DATABASES = {"default": _postgres(os.environ["SHOP_POSTGRES"]) if "SHOP_POSTGRES" in os.environ else _sqlite}

# Without a URL, jobs are stored in DATABASES["default"], so an order and its task are committed together.
TASKS: dict[str, Any] = {
    "default": {
        "BACKEND": "everwork.django.EverworkBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 3, "cron": {"shop.tasks.delete_old_orders": "0 3 * * *"}},
    }
}
