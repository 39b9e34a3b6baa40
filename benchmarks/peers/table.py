"""The comparison with other job queues as text, for the terminal and RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.peers.figures import CALLERS, WITHOUT_SYNC, Ask, Figures

HEADINGS = (
    "", "version", "drain jobs/s", "range", "single enqueue /s", "bulk /s", "64 callers /s", "p50 ms", "p99 ms",
    "CPU us/job worker + server", "ack", "same durability", "exactly once",
)  # fmt: skip


def as_markdown(engine: str, found: Mapping[str, Figures], asks: Sequence[Ask], known: Mapping[str, str]) -> str:
    """One engine: the figures, targets and settings of all queues."""
    shown = sorted(
        (figures for name, figures in found.items() if not name.endswith(CALLERS)),
        key=lambda figures: -(figures.median("rate") or 0),
    )
    callers = found.get(f"everwork_{engine}{CALLERS}")
    rows = [_cells(one, callers if one.name == f"everwork_{engine}" else None) for one in shown]
    facts = "; ".join(f"{name}: {fact}" for name, fact in known.items())
    return f"""### Comparison with other job queues: {engine}

    python -m benchmarks peers --engine {engine} --write

{facts}.

{_table(HEADINGS, rows)}

{_table(("figure", "Everwork", "best peer", "peer", "ratio", "target", "met"), map(_ask_cells, asks)) if asks else ""}

{_notes(found.values())}
"""


def _notes(found: Iterable[Figures]) -> str:
    lines = [f"- `{one.name}`: {one.jobs:,} jobs; {one.config}" for one in found if one.config]
    lines += [f"- `{one.name}` FAILED {len(one.failures)} times: {one.failures[-1]}" for one in found if one.failures]
    return "\n".join(lines)


def _cells(one: Figures, callers: Figures | None) -> tuple[str, ...]:
    rates = one.taken.get("rate", [])
    bulk = _number(one.median("bulk")) + (" (gather)" if one.bulk_kind == "gather" else "")
    return (
        one.name,
        one.version,
        _number(one.median("rate")),
        f"{min(rates):,.0f}-{max(rates):,.0f} ({len(rates)})" if rates else "",
        _number(one.median("single")),
        bulk,
        _number(callers.median("bulk")) if callers else "",
        _number(one.median("p50")),
        _number(one.median("p99")),
        f"{_number(one.median('worker_us'))} + {_number(one.median('server_us'))}",
        one.ack,
        "NO" if one.name in WITHOUT_SYNC else "yes",
        "yes" if one.is_exact and not one.failures else "NO",
    )


def _ask_cells(ask: Ask) -> tuple[str, ...]:
    return (
        ask.what,
        _number(ask.ours),
        ask.peer,
        _number(ask.theirs),
        "" if ask.ratio is None else f"{ask.ratio:.2f}",
        f">= {ask.at_least:g}" if ask.at_least is not None else f"<= {ask.at_most:g}",
        {None: "not measured", True: "yes", False: "NO"}[ask.is_met],
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 20 else f"{value:.2f}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
