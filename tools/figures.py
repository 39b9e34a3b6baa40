"""Code metrics: the size of the source, repetition, and how many functions and files one call passes through.

    python -m tools.figures [--calls] [--json] [CHECKOUT]

The column "before" was measured by this program on commit 54065ee, before modules and terms were reorganized. `--calls`
also counts the functions and files that one enqueue and one create over REST pass; it takes a moment and needs Redis.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
GENERATED: Final = re.compile(r"_pb2(_grpc)?\.pyi?$")
SMALL_LINES_MAX: Final = 50
VERBS: Final = ("cancel", "get", "explain", "requeue")
TEXTS: Final = re.compile(r"^(self|options)$|settings|health")
KEY: Final = "figures-" + "k" * 24


class Figure(NamedTuple):
    """One row: what is counted, its value before, and the target (a maximum)."""

    title: str
    before: str
    aim: str


FIGURES: Final = {
    "modules": Figure("modules", "352", "-"),
    "lines": Figure("lines of Python", "45,999", "-"),
    "largest_folder": Figure("modules in the largest folder", "49", "20"),
    "small_modules": Figure(f"modules of at most {SMALL_LINES_MAX} lines", "52", "25"),
    "largest_module": Figure("lines of the largest module", "398", "400"),
    "verb_files": Figure("files that mention the operation `reschedule`", "18", "14"),
    "field_files": Figure("files that mention the field `correlation_id`", "52", "37"),
    "verb_classes": Figure(f"classes that repeat {', '.join(VERBS)}", "15, 14, 14, 13", "6 each"),
    "engine_reached": Figure("lines above the service that access an engine", "63", "0"),
    "retry_loops": Figure("retry loops for an unavailable engine", "5", "1"),
    "long_sql_lines": Figure("lines of SQL and Lua over 120 columns", "363", "0"),
    "metaphors": Figure("uses of words that are not terms of the field", "1,364", "0"),
    "enqueue_sqlite": Figure("one enqueue on SQLite: functions, files", "86, 24", "62, 16"),
    "enqueue_redis": Figure("one enqueue on Redis: functions, files", "45, 18", "32, -"),
    "job_sqlite": Figure("one whole job on SQLite", "203, 42", "-"),
    "job_redis": Figure("one whole job on Redis", "142, 33", "-"),
    "rest_sqlite": Figure("one create over REST, SQLite", "137, 38", "100, 26"),
    "rest_redis": Figure("one create over REST, Redis", "105, 30", "-"),
    "grpc_sqlite": Figure("one create over gRPC, SQLite", "86, 24", "-"),
    "grpc_redis": Figure("one create over gRPC, Redis", "51, 17", "-"),
}
METAPHORS: Final = re.compile(
    r"\b(told|whoever|somebody|nobody|desk|reception|office|deeds?|wish(es)?|crew|broom|nearby|backstage|aftermath|twins?|anew|sought|time-outs?)\b",
    re.IGNORECASE,
)


# Static figures ---------------------------------------------------------------------------------


def static_figures(source: Path) -> dict[str, str]:
    """Everything that can be counted in the source files."""
    modules = {path: path.read_text() for path in sorted(source.rglob("*.py")) if not GENERATED.search(path.name)}
    trees = {path: ast.parse(text) for path, text in modules.items()}
    folders = [path.parent for path in modules if path.name != "__init__.py"]
    sizes = {path: text.count("\n") for path, text in modules.items() if path.name != "__init__.py"}
    queries = [
        path for path in source.rglob("*.*") if path.suffix in (".sql", ".lua") and "migrations" not in path.parts
    ]
    return {
        "modules": str(len(modules)),
        "lines": f"{sum(text.count(chr(10)) for text in modules.values()):,}",
        "largest_folder": str(max(map(folders.count, set(folders)))),
        "small_modules": str(sum(size <= SMALL_LINES_MAX for size in sizes.values())),
        "largest_module": str(max(sizes.values())),
        "verb_files": str(len(list(_files_that_name(source, "reschedule")))),
        "field_files": str(len(list(_files_that_name(source, "correlation_id")))),
        "verb_classes": ", ".join(str(_classes_with(trees.values(), verb)) for verb in VERBS),
        "engine_reached": str(sum(map(_reaches, *zip(*_above_the_service(source, trees), strict=True)))),
        "retry_loops": str(sum(_retries(tree) for tree in trees.values())),
        "long_sql_lines": str(sum(len(line) > 120 for path in queries for line in path.read_text().splitlines())),
        "metaphors": f"{sum(len(METAPHORS.findall(text)) for text in modules.values()):,}",
    }


def _files_that_name(source: Path, word: str) -> Iterator[Path]:
    """Handwritten files, in any language, that contain a word."""
    for path in source.rglob("*"):
        is_written = path.suffix in (".py", ".sql", ".lua", ".proto", ".html", ".js") and not GENERATED.search(
            path.name
        )
        if is_written and re.search(rf"\b{word}\b", path.read_text()):
            yield path


def _classes_with(trees: Any, method: str) -> int:
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return sum(any(isinstance(one, functions) and one.name == method for one in node.body) for node in classes)


def _above_the_service(source: Path, trees: dict[Path, ast.Module]) -> Iterator[tuple[str, ast.Module]]:
    for path, tree in trees.items():
        package = path.relative_to(source).parts[0]
        if package not in ("service", "engines", "core"):
            yield path.name, tree


def _reaches(_name: str, tree: ast.Module) -> int:
    """Lines with `something.engine`, except the object's own engine, and URLs or names."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "engine"]
    others = [node for node in found if not TEXTS.search(ast.unparse(node.value))]
    return len({node.lineno for node in others})


def _retries(tree: ast.Module) -> int:
    """Loops around a call that handle the error of an unavailable engine."""
    loops = [node for node in ast.walk(tree) if isinstance(node, (ast.While, ast.For, ast.AsyncFor))]
    return sum(any(_is_away(handler) for one in loop.body for handler in _handlers(one)) for loop in loops)


def _handlers(statement: ast.stmt) -> list[ast.ExceptHandler]:
    return statement.handlers if isinstance(statement, ast.Try) else []


def _is_away(handler: ast.ExceptHandler) -> bool:
    return handler.type is not None and "EngineUnavailable" in ast.unparse(handler.type)


# Call figures -----------------------------------------------------------------------------------

TRACED: Final = """
import os, signal, sys, threading
seen, on = set(), [False]
def note(frame, event, _argument):
    if on[0] and event == "call" and "/everwork/" in frame.f_code.co_filename:
        seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
def counted():
    return f"{len(seen)}, {len({file for file, _ in seen})}"
threading.setprofile(note)
sys.setprofile(note)
"""
ENQUEUE: Final = (
    TRACED
    + """
import asyncio
from everwork import Everwork
async def main():
    app = Everwork(sys.argv[1])
    @app.job("figures")
    async def figures(to): pass
    async with app:
        for _ in range(3): await app.enqueue("figures", to="ada")
        on[0] = True
        await app.enqueue("figures", to="ada")
        on[0] = False
asyncio.run(main())
print(counted())
"""
)
JOB: Final = (
    TRACED
    + """
import asyncio
from everwork import Everwork
async def main():
    app, least = Everwork(sys.argv[1]), None
    done = asyncio.Event()
    @app.job("figures")
    async def figures(to): done.set()
    async with app:
        working = asyncio.ensure_future(app.work())
        for turn in range(8):
            await asyncio.sleep(0.2)
            done.clear(); seen.clear()
            on[0] = True
            await app.enqueue("figures", to="ada")
            await done.wait()
            await asyncio.sleep(0.05)  # Until its outcome is stored.
            on[0] = False
            if turn > 2: least = min(least or counted(), counted(), key=lambda text: int(text.split(",")[0]))
        app.stop()
        await working
    print(least)
asyncio.run(main())
"""
)
"""The smallest of five measurements: the others may include a sweep or a heartbeat."""
SERVE: Final = (
    TRACED
    + """
def switch(*_):
    if on[0]: os.write(3, counted().encode()); os.close(3)
    on[0] = not on[0]
signal.signal(signal.SIGUSR1, switch)
from everwork.cli.main import main
sys.argv = ["everwork", "serve", *sys.argv[1:]]
main()
"""
)


def call_figures(checkout: Path) -> dict[str, str]:
    """The functions and files that one call passes through, in all threads of the process that serves it."""
    from tests.shared_servers import start  # noqa: PLC0415 - servers are needed only to count calls

    redis = start("redis")
    try:
        with tempfile.TemporaryDirectory() as folder:
            urls = {"sqlite": f"sqlite:///{folder}/jobs.db", "redis": redis.url}
            return {
                f"{kind}_{name}": count(checkout, url)
                for kind, count in {"enqueue": _enqueue, "job": _job, "rest": _rest, "grpc": _grpc}.items()
                for name, url in urls.items()
            }
    finally:
        redis.remove()


def _enqueue(checkout: Path, url: str) -> str:
    return _printed(checkout, ENQUEUE, url)


def _job(checkout: Path, url: str) -> str:
    return _printed(checkout, JOB, url)


def _printed(checkout: Path, program: str, url: str) -> str:
    command = [sys.executable, "-c", program, url]
    done = subprocess.run(command, env=_environment(checkout), capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()


def _rest(checkout: Path, url: str) -> str:
    return _served(checkout, url, lambda facts: _post(facts["http_port"]))


def _grpc(checkout: Path, url: str) -> str:
    from everwork.client import SyncClient  # noqa: PLC0415 - only the server must be the checkout's

    def create(facts: dict[str, Any]) -> None:
        with SyncClient(f"grpc://127.0.0.1:{facts['grpc_port']}", key=KEY) as client:
            client.create("figures", {"to": "ada"})

    return _served(checkout, url, create)


def _served(checkout: Path, url: str, create: Callable[[dict[str, Any]], None]) -> str:
    """What one create passes through in a server, after three that are not counted."""
    received, sent = os.pipe()
    command = ["sh", "-c", f'exec "$@" 3>&{sent}', "sh", sys.executable, "-c", SERVE]
    arguments = ["--engine", url, "--http-port", "0", "--grpc-port", "0", "--json"]
    environment = _environment(checkout) | {"EVERWORK_API_KEY": KEY}
    with subprocess.Popen(  # noqa: S603 - our own program
        [*command, *arguments], env=environment, pass_fds=[sent], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as server:  # fmt: skip
        os.close(sent)
        assert server.stdout is not None  # noqa: S101 - it was asked for
        try:
            facts = json.loads(server.stdout.readline())
            for _ in range(3):
                create(facts)
            server.send_signal(signal.SIGUSR1)
            create(facts)
            server.send_signal(signal.SIGUSR1)
            return os.read(received, 100).decode()
        finally:
            server.terminate()


def _post(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/jobs",
        json.dumps({"type": "figures", "variables": {"to": "ada"}}).encode(),
        {"Content-Type": "application/json", "X-API-Key": KEY},
    )
    urllib.request.urlopen(request).read()  # noqa: S310


def _environment(checkout: Path) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("EVERWORK_")}
    return mine | {"PYTHONPATH": str(checkout / "src")}


def main() -> None:
    """Print the table, or its newest column as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--calls", action="store_true", help="count what one enqueue and one create over REST pass")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found = static_figures(options.checkout / "src" / "everwork")
    if options.calls:
        found |= call_figures(options.checkout)
    if options.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    width = max(len(one.title) for one in FIGURES.values())
    sys.stdout.write(f"{'':{width}}  {'before':>14}  {'now':>14}  {'target':>8}\n")
    for name, (title, before, aim) in FIGURES.items():
        if name in found:
            sys.stdout.write(f"{title:{width}}  {before:>14}  {found[name]:>14}  {aim:>8}\n")


if __name__ == "__main__":
    main()
