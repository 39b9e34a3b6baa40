"""The samples: one value per moment, subject and measure, kept in memory and appended to a CSV file."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "series.csv"
FAULTS: Final = "faults"
"""The subject whose measures are the names of faults, each at the moments when it was injected."""
HEAD: Final = ("seconds", "subject", "measure", "value")


class Point(NamedTuple):
    """A value, and how many seconds after the start of the run it was measured."""

    seconds: float
    value: float


class Series:
    """The points of every subject (a process, the store, a latency) and measure, in chronological order."""

    def __init__(self, file: Path | None = None) -> None:
        self._points: dict[tuple[str, str], list[Point]] = defaultdict(list)
        self._file = file
        if file is not None:
            file.write_text(",".join(HEAD) + "\n", "utf-8")

    def add(self, seconds: float, subject: str, values: Mapping[str, float]) -> None:
        """Keep the values of one moment, in memory and in the file."""
        for measure, value in values.items():
            self._points[subject, measure].append(Point(seconds, value))
        if self._file is not None:
            with self._file.open("a", encoding="utf-8", newline="") as opened:
                csv.writer(opened, lineterminator="\n").writerows(
                    (f"{seconds:.1f}", subject, measure, f"{value:.6g}" if value % 1 else int(value))
                    for measure, value in values.items()
                )

    def points(self, subject: str, measure: str) -> list[Point]:
        """The points of one series."""
        return self._points.get((subject, measure), [])

    def lines(self) -> Iterator[tuple[str, str, list[Point]]]:
        """Every series: subject, measure, points."""
        for (subject, measure), points in self._points.items():
            yield subject, measure, points

    def faults(self) -> list[tuple[float, str]]:
        """When each fault was injected."""
        found = [
            (point.seconds, name) for subject, name, points in self.lines() for point in points if subject == FAULTS
        ]
        return sorted(found)

    @property
    def ends_at(self) -> float:
        """When the last point was measured."""
        return max((points[-1].seconds for _, _, points in self.lines()), default=0.0)


def load(file: Path) -> Series:
    """The series in a file of an earlier run, or of one that is still running."""
    series = Series()
    with file.open(encoding="utf-8", newline="") as opened:
        for row in csv.DictReader(opened):
            series.add(float(row["seconds"]), row["subject"], {row["measure"]: float(row["value"])})
    return series
