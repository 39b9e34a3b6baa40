"""python -m task6: the API and its worker, until stopped."""

from __future__ import annotations

import argparse
import sys

import uvicorn

from everwork.client import Client
from everwork.exceptions import EverworkError
from task6.api import web_application
from task6.jobs import make_app


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(prog="python -m task6", description="A job queue with deterministic failures.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--store", default="sqlite:///task6.db", help="the engine's URL")
    parser.add_argument("--fail-every", type=int, metavar="N", help="make every Nth call fail")
    parser.add_argument("--fail-type", action="append", default=[], metavar="TYPE", help="make calls of a type fail")
    given = parser.parse_args()
    try:
        app = make_app(given.store, fail_every=given.fail_every, fail_types=given.fail_type or ["broken"])
        web = web_application(app, Client(given.store))
    except EverworkError as error:
        sys.exit(f"task6: {error}")
    uvicorn.run(web, host="127.0.0.1", port=given.port)


if __name__ == "__main__":
    main()
