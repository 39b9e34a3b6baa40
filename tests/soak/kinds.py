"""The types of jobs in a soak: their mix, their workers and their retention."""

from __future__ import annotations

from typing import Final

QUICK, REST, MANAGED, APP = "soak-quick", "soak-rest", "soak-managed", "soak-app"
FLAKY, DOOMED, SLOW, BIG, LATER = "soak-flaky", "soak-doomed", "soak-slow", "soak-big", "soak-later"
PROBE, PROBE_MANAGED = "soak-probe", "soak-probe-managed"
TICK, EVENT, NOBODY = "soak-tick", "soak-event", "soak-nobody"

MIX: Final = {QUICK: 40, REST: 15, MANAGED: 20, APP: 10, FLAKY: 5, DOOMED: 2, SLOW: 1, BIG: 2, LATER: 5}
"""The mix of created jobs, in percent; `NOBODY` has no jobs, only polls."""
SERVED: Final = {
    "manager": (MANAGED, PROBE_MANAGED),
    "app": (APP,),
    "stream-1": (QUICK, FLAKY, DOOMED, SLOW, BIG, LATER, PROBE),
    "rest-1": (REST,),
}
"""Which worker runs which types; the workers that are killed and restarted share the types of the last two."""
EXACT: Final = (QUICK, REST, MANAGED, APP, FLAKY, SLOW, BIG, LATER, PROBE, PROBE_MANAGED)
"""Types whose jobs all complete exactly once, so that their statistics must match the acknowledged jobs."""
DOOMED_ATTEMPTS: Final = 2
RETRIES_MAX: Final = 50
"""Enough attempts that faults never turn a job that should complete into a dead letter."""


def settings_text(keep_hours: float) -> str:
    """The settings file of the servers."""
    lines = ["[types]"]
    for type in (*EXACT, DOOMED, EVENT, TICK, NOBODY):
        attempts = DOOMED_ATTEMPTS if type == DOOMED else RETRIES_MAX
        lines += [
            f'[types."{type}"]',
            f"max_attempts = {attempts}",
            "base = 0.5",
            "cap = 5",
            f"keep_completed_hours = {keep_hours}",
            f"keep_failed_hours = {keep_hours}",
        ]
    return "\n".join(lines) + "\n"
