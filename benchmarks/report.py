"""The table on the terminal, in JSON and in RESULTS.md, with facts about the machine."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile

from benchmarks.bench import ROUNDS, Bench, Row
from benchmarks.hosts import Host
from everwork.aio.loops import new_loop

HEADINGS = ("part", "measured", "result", "", "vs. bare", "CPU us/job", "target", "")
NUMBERS = (2, 4, 5)
"""The right-aligned columns."""

PAGES = (
    "30 requests per page, pages in turn, one request at a time over one connection, from a client on the same "
    "machine; CPU includes the server and the database server."
)
OFFLINE = (
    "Short alternating runs with and without a spool, on two stores of the same server. The ratio is the median over "
    "pairs of runs, with its 95 % bootstrap interval in parentheses."
)
NEIGHBORS = (
    "Times are those of the quiet tenant's cycles (create, poll, complete, get), alone -> beside the noise, and their "
    "ratio. Server, quiet tenant and noise share the cores."
)
ECHO = "The bare echo is a grpc.aio server that returns each request; server and client are one process each."

DRIVERS = {"sqlite": [], "postgres": ["asyncpg"], "redis": ["redis", "hiredis"]}

Facts = Mapping[str, str]


def facts(folder: Path, load_before: float) -> dict[str, str]:
    """What the figures depend on, without the name of the machine."""
    loop = new_loop()
    loop.close()
    cores = len(os.sched_getaffinity(0))
    known = {
        "cores": str(cores),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "event loop": type(loop).__module__.partition(".")[0],
        "file system": file_system(folder),
        "write of 4 KiB with fdatasync": f"{_sync_ms(folder):.2f} ms",
        "load average before and after": f"{load_before:.1f}, {os.getloadavg()[0]:.1f}",
    }
    if load_before > cores / 2:
        known["warning"] = "the machine was busy with other work; wall times and their ratios mean little, compare CPU"
    return known


async def engine_facts(bench: Bench) -> dict[str, str]:
    """The measured engine: version, driver, durability, settings."""
    async with bench.engine() as engine:
        health = await engine.health()
    drivers = {module: importlib.metadata.version(module) for module in DRIVERS[bench.host.name]}
    known = {
        "engine": f"{health.engine} {health.version}",
        **drivers,
        "durability": health.durability.value,
        "settings": bench.host.settings,
    }
    return {name: fact for name, fact in known.items() if fact}


def _sync_ms(folder: Path) -> float:
    """The median time of a durable write on this disk."""
    taken_ms = []
    with NamedTemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            taken_ms.append((time.perf_counter() - began) * 1e3)
    return median(taken_ms)


def file_system(folder: Path) -> str:
    """The type of a folder's file system."""
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    inside = [(mount[1], mount[2]) for mount in mounts if folder.resolve().is_relative_to(mount[1])]
    return max(inside, key=lambda mount: len(mount[0]))[1]


def as_text(rows: Sequence[Row], known: Facts) -> str:
    """The table for a terminal."""
    cells = [HEADINGS, *map(_cells, rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEADINGS))]
    lines = ["  ".join(_set(text, widths[at], at) for at, text in enumerate(line)).rstrip() for line in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *(f"{name}: {fact}" for name, fact in known.items())])


def as_json(measured: Mapping[str, tuple[Sequence[Row], Facts]]) -> str:
    """The same as JSON, by engine."""
    return json.dumps(
        {
            name: {"facts": known, "rows": [{**asdict(row), "aim": row.aim, "is_met": row.is_met} for row in rows]}
            for name, (rows, known) in measured.items()
        },
        indent=2,
    )


def as_markdown(host: type[Host], rows: Sequence[Row], known: Facts, parts: Sequence[str] = ()) -> str:
    """The engine's section of RESULTS.md, or one of some parts only."""
    only = f" --only {' '.join(parts)}" if parts else ""
    noises = f"NOISES={os.environ['NOISES']} " if "NOISES" in os.environ else ""
    bare = f"{ROUNDS} rounds, unless the text says more. The bare loop is {host.what_bare_is}."
    of_part = {"server": f"{ROUNDS} rounds. {ECHO}", "pages": PAGES, "offline": OFFLINE, "neighbors": NEIGHBORS}
    words = of_part.get(" ".join(parts), bare)
    headings = (*HEADINGS[:3], "unit", *HEADINGS[4:7], "met")
    rule = ["--:" if at in NUMBERS else "---" for at in range(len(headings))]
    lines = neighbors_lines(rows) if parts == ["neighbors"] else (headings, rule, *map(_cells, rows))
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"""### {", ".join([host.name, *parts])}

    {noises}make bench ARGS="--engine {host.name}{only} --write"

{"; ".join(f"{name}: {fact}" for name, fact in known.items())}. {words}

{table}
"""


def neighbors_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line per noise instead of twenty."""
    noises: dict[str, dict[str, Row]] = {}
    for row in rows:
        noise, _, what = row.what.rpartition(": ")
        noises.setdefault(noise, {})[what] = row
    headings = ("noise", "REST median, ms", "REST p99, ms", "gRPC median, ms", "gRPC p99, ms", "/healthz p99, ms")
    lines = [(*headings, "server's memory, MiB", "failed cycles"), ("---", *["--:"] * 7)]
    for noise, of in noises.items():
        cycles = [_pair(of, api, which) for api in ("REST", "gRPC") for which in ("median", "p99")]
        health, failed = of["/healthz beside it, p99"].value, of["failed gRPC cycles"].value
        memory = f"{of['memory before'].value:.0f} -> {of['memory, peak'].value:.0f}"
        lines.append((noise, *cycles, f"{health:.1f}", memory, f"{failed:.0f}"))
    return lines


def _pair(of: Mapping[str, Row], api: str, which: str) -> str:
    alone, beside = of[f"{api} alone, {which}"].value, of[f"{api} beside it, {which}"].value
    return f"{alone:.1f} -> {beside:.1f} ({beside / alone:.1f})"


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {None: "", True: "yes", False: "NO"}[row.is_met] if row.is_judged else "disk too slow"
    return (
        row.part,
        row.what,
        f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.2f}",
        row.unit,
        _ratio(row),
        "" if row.cpu_us is None else f"{row.cpu_us:.1f}",
        row.aim,
        verdict,
    )


def _ratio(row: Row) -> str:
    if row.ratio is None or row.interval is None:
        return "" if row.ratio is None else f"{row.ratio:.2f}"
    low, high = row.interval
    return f"{row.ratio:.3f} ({low:.3f} to {high:.3f})"


def _set(text: str, width: int, at: int) -> str:
    return text.rjust(width) if at in NUMBERS else text.ljust(width)
