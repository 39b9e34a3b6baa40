"""The Django application: `manage.py migrate` prepares stores in Django's own databases."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate


class EverworkConfig(AppConfig):
    """`everwork.django` in INSTALLED_APPS."""

    name = "everwork.django"
    label = "everwork"
    verbose_name = "Everwork"

    def ready(self) -> None:
        """Prepare stores when their databases are migrated, and close them when tests change settings."""
        # Listen to any sender: Django sends the signal only for applications with models, and this one has none.
        post_migrate.connect(_prepare_stores, dispatch_uid="everwork.django")
        setting_changed.connect(_forget_stores, dispatch_uid="everwork.django")


def _prepare_stores(*, using: str, **_: Any) -> None:
    from everwork.django.stores import prepare  # noqa: PLC0415 - it needs Django's applications

    prepare(using)


def _forget_stores(*, setting: str, **_: Any) -> None:
    if setting in ("TASKS", "DATABASES"):
        from everwork.django.stores import close_all  # noqa: PLC0415 - it needs Django's applications

        close_all()
