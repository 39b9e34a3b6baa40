"""What the examples of a page need around them, and what stands in for servers that a test does not have."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

SWAPS: Final = (
    (re.compile(r'"(?:postgresql|rediss?(?:\+cluster)?)://[^"]*"'), '"sqlite:///jobs.db"'),
    (re.compile(r"/var/lib/shop/"), ""),
    *([] if find_spec("django.tasks") else [(re.compile(r"django\.tasks"), "django_tasks")]),
)
"""Stores in files of the folder; on Django 5.2 its tasks are a package of their own."""

_DJANGO: Final = """
import os
import sys
from datetime import timedelta
from functools import partial

os.environ |= {"DJANGO_SETTINGS_MODULE": "shop.settings", "SHOP_SQLITE": "shop.db"}
sys.path.insert(0, f"{ROOT}/examples/django_shop")

import django

django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone
from everwork.django import job_context
from shop.models import Order as ShopOrder
from shop.tasks import confirm

call_command("migrate", verbosity=0)
tomorrow = timezone.now() + timedelta(days=1)


class Order:
    class objects:
        @staticmethod
        def create(*anything):
            return ShopOrder.objects.create(email="ada@example.org", amount=1)
"""

SETUPS: Final = {
    "docs/how-to/django.md": _DJANGO,
    "docs/how-to/failures.md": """
from everwork import Everwork

app = Everwork("sqlite:///jobs.db")
key = await app.enqueue("card-charge", order=7)
""",
    "docs/how-to/from-django-tasks.md": "INSTALLED_APPS = []",
    "docs/how-to/offline.md": "from everwork import Everwork",
    "docs/how-to/workers.md": """
import os

from everwork import RetryPolicy

os.environ["CRON_SECRET"] = "a-secret-of-sixteen-characters"
""",
}
"""Run before the first example of a page."""
