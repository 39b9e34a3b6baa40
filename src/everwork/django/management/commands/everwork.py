"""`manage.py everwork`: runs the tasks of the project until SIGINT or SIGTERM."""

from __future__ import annotations

import os
import site
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from everwork import logs
from everwork.cli.supervisor import supervise
from everwork.django.compat import DEFAULT_BACKEND
from everwork.django.workers import CONCURRENCY_DEFAULT, WorkerChoice, make_worker
from everwork.exceptions import EverworkError

log = logs.get_logger("everwork")


class Command(BaseCommand):
    """Run the project's tasks."""

    help = "Run the tasks of this project until SIGINT or SIGTERM. A second signal cancels running tasks."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--backend", default=DEFAULT_BACKEND, metavar="ALIAS", help="The alias of a backend in TASKS."
        )
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            metavar="NAME",
            help="Run only tasks of this queue; can be repeated.",
        )
        parser.add_argument(
            "--concurrency",
            type=int,
            default=CONCURRENCY_DEFAULT,
            metavar="N",
            help="Maximum number of tasks running concurrently in one process.",
        )
        parser.add_argument("--processes", type=int, default=1, metavar="N", help="Number of worker processes.")
        parser.add_argument("--reload", action="store_true", help="Restart when Python files change, for development.")

    def handle(
        self, *, backend: str, queue: list[str], concurrency: int, processes: int, reload: bool, **_: Any
    ) -> None:
        """Run until stopped."""
        logs.configure()
        try:
            choice = WorkerChoice.checked(backend, queue, concurrency, processes)
            if processes > 1 or reload:
                sys.exit(_supervise(choice, processes, reload=reload))
            app = make_worker(choice)
            log.info("worker started", types=sorted(app.functions))
            app.run()
            log.info("worker stopped")
        except (EverworkError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None


def _supervise(choice: WorkerChoice, processes: int, *, reload: bool) -> int:
    """Run child processes that load the project themselves; they find it in the folder of `manage.py`."""
    os.environ.update(choice.environment())
    folder = Path(sys.argv[0]).absolute().parent
    command = ["worker", "everwork.django:worker", "--app-dir", str(folder)]
    return supervise(command, processes, _folders_of_the_project(folder) if reload else None)


def _folders_of_the_project(folder: Path) -> list[Path]:
    """The folders of the project's own applications, excluding those installed by pip."""
    installed = [Path(one).resolve() for one in (*site.getsitepackages(), site.getusersitepackages(), sys.prefix)]
    own = {folder.resolve(), *(Path(one.path).resolve() for one in apps.get_app_configs())}
    return sorted(one for one in own if not any(one.is_relative_to(place) for place in installed))
