"""Flask integration: handlers run in an application context; `flask everwork worker` runs the workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import click
from flask import Flask, current_app
from flask.cli import AppGroup

from everwork import logs
from everwork.app.app import Everwork
from everwork.core import checks
from everwork.exceptions import BadConfiguration, EverworkError
from everwork.runtime.handler import Handler
from everwork.runtime.shutdown import SHUTDOWN_SECONDS

EXTENSION: Final = "everwork"

__all__ = ["init"]


def init(app: Everwork, flask_app: Flask) -> None:
    """Connect an Everwork application to a Flask application. Call it in the factory, before or after declaring jobs.

    Each handler call gets its own application context, pushed in the thread that runs the handler, so that resources
    torn down with the context (such as a database session) belong to that thread. `flask_app.extensions["everwork"]` is
    the Everwork application, and `flask everwork worker` runs its workers. If the factory is called again, as in tests,
    handlers use the newest Flask application. Raises `BadConfiguration` if an argument is invalid.
    """
    if not isinstance(app, Everwork):
        raise BadConfiguration(f"flask: init takes an Everwork application, not {checks.shown(app)}")
    if not isinstance(flask_app, Flask):
        raise BadConfiguration(f"flask: init takes a Flask application, not {checks.shown(flask_app)}")
    if EXTENSION in flask_app.extensions:
        raise BadConfiguration(f"flask: '{flask_app.name}' already has an Everwork application")
    flask_app.extensions[EXTENSION] = app
    app._workers.wrap_calls("flask", lambda handler: _in_context(handler, flask_app))  # noqa: SLF001 - part of the package
    flask_app.cli.add_command(commands)


def _in_context(handler: Handler, flask_app: Flask) -> Callable[..., Any]:
    function = handler.function

    @wraps(function)
    def called(*given: Any, **arguments: Any) -> Any:
        with flask_app.app_context():
            return function(*given, **arguments)

    @wraps(function)
    async def awaited(*given: Any, **arguments: Any) -> Any:
        with flask_app.app_context():
            return await function(*given, **arguments)

    return awaited if handler.is_async else called


commands = AppGroup(EXTENSION, help="Run the jobs of this application.")


@commands.command("worker", with_appcontext=True)
@click.option("--log-level", default="info", show_default=True, type=click.Choice([one.lower() for one in logs.LEVELS]))
@click.option("--log-format", default="console", show_default=True, type=click.Choice(["console", "json"]))
@click.option(
    "--shutdown-timeout",
    default=SHUTDOWN_SECONDS,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds that running jobs get to finish.",
)
def worker(log_level: str, log_format: str, shutdown_timeout: float) -> None:
    """Run the workers until SIGINT or SIGTERM. A second signal cancels running jobs."""
    app: Everwork = current_app.extensions[EXTENSION]
    logs.configure("json" if log_format == "json" else "console", log_level.upper())
    try:
        app.run(shutdown_timeout=shutdown_timeout)
    except EverworkError as error:
        raise click.ClickException(str(error)) from None
