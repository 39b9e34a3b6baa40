"""The table on the terminal, in JSON, and in RESULTS.md; the facts of the machine that belong to it."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.bench import ROUNDS, Row, url_of
from everwork.engines.open import open_engine
from everwork.workers.portal import new_loop

HEADINGS = ("part", "measured", "result", "", "to bare", "CPU us/job", "aim", "")
NUMBERS = (2, 4, 5)
"""The columns that are set flush right."""

Facts = Mapping[str, str]


def facts(folder: Path, load_before: float) -> dict[str, str]:
    """What the numbers depend on; nothing that names the machine."""
    loop = new_loop()
    loop.close()
    cores = len(os.sched_getaffinity(0))
    known = {
        "cores": str(cores),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "event loop": type(loop).__module__.partition(".")[0],
        "SQLite": sqlite3.sqlite_version,
        "durability": open_engine(url_of(folder / "jobs.db")).durability.value,
        "file system": file_system(folder),
        "write of 4 KiB with fdatasync": f"{_sync_ms(folder):.2f} ms",
        "load average before and after": f"{load_before:.1f}, {os.getloadavg()[0]:.1f}",
    }
    if load_before > cores / 2:
        known["beware"] = "the machine was busy with other work: wall times and their ratios tell little, compare CPU"
    return known


def _sync_ms(folder: Path) -> float:
    """What one durable write costs on this disk: the median of a few."""
    taken_ms = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            taken_ms.append((time.perf_counter() - began) * 1e3)
    return median(taken_ms)


def file_system(folder: Path) -> str:
    """The kind of file system that a folder is on."""
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


def as_json(rows: Sequence[Row], known: Facts) -> str:
    """The same for programs."""
    return json.dumps(
        {"facts": known, "rows": [{**asdict(row), "aim": row.aim, "is_met": row.is_met} for row in rows]}, indent=2
    )


def as_markdown(rows: Sequence[Row], known: Facts) -> str:
    """RESULTS.md."""
    headings = (*HEADINGS[:3], "unit", *HEADINGS[4:7], "met")
    rule = ["--:" if at in NUMBERS else "---" for at in range(len(headings))]
    table = "\n".join("| " + " | ".join(line) + " |" for line in (headings, rule, *map(_cells, rows)))
    return f"""# Speed, measured

    make bench ARGS=--write

{"; ".join(f"{name}: {fact}" for name, fact in known.items())}.

{table}

- The bare loop is SQLite alone, from one thread, with the same durability: one table, claim 100 in one transaction,
  delete them in the next; no fencing, counts, history or finished jobs. "to bare" is the rate as a fraction of it
  (enqueue: of the bare insert above it).
- What is compared was measured in turn, in {ROUNDS} rounds of one run; rates are medians, and a ratio is the median of
  the rounds' own ratios. On a busy or slow disk all wait for the same thing, and the ratios tell little (fused steps
  sync half as often as the bare loop, and may then seem faster than it): where the bare loop is on the CPU for less
  than half of its time, aims are not judged; compare the CPU.
- CPU is that of all threads of the process, per job. Every drain checks that each job was completed.
- One part alone: `make bench ARGS="--only drain"`; a first impression: `make bench ARGS=--quick`.
"""


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {None: "", True: "yes", False: "NO"}[row.is_met] if row.is_judged else "disk too slow"
    return (
        row.part,
        row.what,
        f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.2f}",
        row.unit,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.cpu_us is None else f"{row.cpu_us:.1f}",
        row.aim,
        verdict,
    )


def _set(text: str, width: int, at: int) -> str:
    return text.rjust(width) if at in NUMBERS else text.ljust(width)
