"""`python -m benchmarks beside COMMIT`: compares this checkout with another commit, in alternating short runs.

The speed of a machine varies from minute to minute by more than most code changes. So both versions run side by side,
each on its own store, and alternate in turns of a second or two; each pair of turns is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.bench import resampled
from benchmarks.hosts import HOSTS, host_of

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("/var/tmp")
Turn = dict[str, tuple[float, float]]


def main(arguments: Sequence[str]) -> None:
    """Measure both in turns, and print a table for each engine."""
    options = _options(arguments)
    with _checkout(options.commit) as other:
        for engine in options.engine or HOSTS:
            with host_of(engine, options.folder) as host, host.store() as here, host.store() as there:
                before, now = _turns((other, there), (ROOT, here), options.rounds, options.only)
            print(f"{engine}, {options.rounds} turns each\n\n{_table(before, now)}\n", flush=True)


def _turns(
    first: tuple[Path, str], second: tuple[Path, str], rounds: int, only: Sequence[str]
) -> tuple[list[Turn], list[Turn]]:
    """The turns of both; the first to run alternates, and the first turn of each is a warm-up."""
    with ExitStack() as stack:
        programs = [stack.enter_context(_program(*one, only)) for one in (first, second)]
        taken: tuple[list[Turn], list[Turn]] = ([], [])
        for number in range(rounds + 1):
            for which in (0, 1) if number % 2 else (1, 0):
                taken[which].append(_turn(programs[which]))
            print(f"\rturn {number} of {rounds}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return taken[0][1:], taken[1][1:]


def _turn(program: subprocess.Popen[str]) -> Turn:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    line = program.stdout.readline()
    if not line:
        sys.exit("one of the two programs has exited; its output is above")
    turn: Turn = json.loads(line)
    return turn


@contextmanager
def _program(tree: Path, url: str, only: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "slices.py"), url, *only]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        yield program
        assert program.stdin is not None
        program.stdin.close()


def _table(before: list[Turn], now: list[Turn]) -> str:
    lines = [
        "| slice | before, us/job | now, us/job | now / before | 95 % of resamples | CPU, now / before |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in now[0]:
        cpu, wall = ([turn[name][at] / last[name][at] for turn, last in zip(now, before, strict=True)] for at in (0, 1))
        low, high = resampled(wall)
        was, is_ = (median(turn[name][1] for turn in turns) for turns in (before, now))
        lines.append(
            f"| {name} | {was:.1f} | {is_:.1f} | {median(wall):.3f} | {low:.3f} to {high:.3f} | {median(cpu):.3f} |"
        )
    return "\n".join(lines)


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A folder with another version; a commit is checked out temporarily."""
    if Path(commit).is_dir():
        yield Path(commit).resolve()
        return
    with TemporaryDirectory(prefix="everwork-beside-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"git {arguments[0]} failed")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks beside",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Example: python -m benchmarks beside HEAD~1 --engine sqlite --rounds 40",
    )
    parser.add_argument("commit", help="the version to compare with: a commit, or the folder of a checkout")
    parser.add_argument("--engine", action="append", choices=HOSTS, help="can be repeated (default: every engine)")
    parser.add_argument("--rounds", type=int, default=30, help="turns per version (default: 30, about two minutes)")
    parser.add_argument("--only", nargs="+", default=[], help="slices with one of these texts in their names")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"folder for the stores (default: {FOLDER})")
    return parser.parse_args(arguments)
