"""A program with workers, for tests that signal or kill it: `python -m tests.app.program URL`."""

from __future__ import annotations

import asyncio
import os
import sys

from everwork import Everwork


def main(url: str) -> None:
    """Run until a signal comes; each handler says when it begins."""
    app = Everwork(url, worker="program")

    @app.job("hold")
    async def hold() -> None:
        _say("begun")
        await asyncio.Event().wait()

    @app.job("gate")
    def gate() -> str:
        _say("begun")
        return sys.stdin.readline().strip()

    @app.job("exit", retry=None)
    async def leave(plain: bool) -> None:
        if plain:
            await asyncio.to_thread(sys.exit, 3)
        sys.exit(3)

    @app.job("plain-exit", retry=None)
    def plain_exit() -> None:
        sys.exit(3)

    @app.job("echo")
    async def echo(text: str) -> str:
        return text

    @app.job("crash")
    def crash() -> None:
        os._exit(9)

    _say("ready")
    app.run()
    _say("ended")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
