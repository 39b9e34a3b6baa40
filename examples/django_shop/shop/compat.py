"""`task` from Django 6, or from its backport."""

import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

__all__ = ["task"]
