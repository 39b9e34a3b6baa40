"""Statistics and administration as JSON objects: one shape for the command line, Python and REST."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everwork.codec.json import decode, decode_policy, require_object
from everwork.core.instants import utc_text, utc_text_or_none
from everwork.core.limits import WORKERS_SHOWN_MAX
from everwork.core.measures import OTHER_WORKERS
from everwork.core.policy import fields_of
from everwork.core.queries import Stats
from everwork.core.states import State
from everwork.service.access.api_key import ApiKey
from everwork.service.access.audit import AuditEntry
from everwork.service.access.sessions import OpenSession
from everwork.service.admin import GroupView, PolicyView, TypeView
from everwork.service.dead_letters import DeadLetterGroup, Grouped
from everwork.service.fleet.admin import TriggerSwitch, WorkerSwitch
from everwork.service.fleet.entries import (
    ManagerEntry,
    ProcessEntry,
    ProcessView,
    TriggerEntry,
    TriggerView,
    WorkerEntry,
    WorkerView,
)
from everwork.service.fleet.running import RunningJob, RunningJobs
from everwork.service.triggers.fires import TriggerFire


@dataclass(frozen=True, slots=True)
class Performance:
    """Worker activity over a number of hours."""

    completed: int
    failed: int
    retried: int
    avg_execution_ms: float
    avg_wait_ms: float

    @property
    def success_rate(self) -> float:
        """Completed jobs as a percentage of finished ones."""
        ended = self.completed + self.failed
        return 100.0 * self.completed / ended if ended else 0.0


def performance(stats: Stats) -> Performance:
    """The sums of the hourly rows."""
    completed = sum(row.completed for row in stats.hours)
    failed = sum(row.failed for row in stats.hours)
    retried = sum(row.retried for row in stats.hours)
    attempts = max(completed + failed + retried, 1)
    return Performance(
        completed,
        failed,
        retried,
        sum(row.execution_ms for row in stats.hours) / attempts,
        sum(row.wait_ms for row in stats.hours) / attempts,
    )


def stats_report(stats: Stats) -> dict[str, Any]:
    """Statistics as a JSON object."""
    by_state: dict[str, int] = {state.label: 0 for state in State}
    by_type: defaultdict[str, dict[str, int]] = defaultdict(lambda: {state.label: 0 for state in State})
    by_worker: defaultdict[str, int] = defaultdict(int)
    for count in stats.counts:
        by_state[count.state.label] += count.jobs
        by_type[count.type][count.state.label] += count.jobs
    for row in stats.hours:
        by_worker[row.worker] += row.completed + row.failed
    summed = performance(stats)
    busiest = dict(sorted(by_worker.items(), key=lambda one: (-one[1], one[0]))[:WORKERS_SHOWN_MAX])
    if len(by_worker) > len(busiest):
        busiest[OTHER_WORKERS] = sum(by_worker.values()) - sum(busiest.values())
    return {
        "total": sum(by_state.values()),
        "by_state": by_state,
        "by_type": dict(by_type),
        "by_worker": busiest,
        "performance": {
            "completed": summed.completed,
            "failed": summed.failed,
            "retried": summed.retried,
            "success_rate": round(summed.success_rate, 2),
            "avg_execution_ms": round(summed.avg_execution_ms, 2),
            "avg_wait_ms": round(summed.avg_wait_ms, 2),
        },
        "generated_at": utc_text(stats.generated_at_ms),
    }


def key_report(key: ApiKey, now_ms: int) -> dict[str, Any]:
    """An API key, without its secret."""
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(now_ms).value,
        "permissions": [permission.value for permission in key.permissions],
        "tenants": list(key.tenants),
        "created_at": utc_text(key.created_at_ms),
        "expires_at": utc_text_or_none(key.expires_at_ms),
        "revoked_at": utc_text_or_none(key.revoked_at_ms),
        "rate_per_second": key.rate_per_second,
    }


def session_report(session: OpenSession) -> dict[str, Any]:
    """A session of the dashboard."""
    return {
        "id": session.id,
        "opened_by": session.who,
        "key_id": session.key_id,
        "opened_at": utc_text(session.opened_at_ms),
        "origin": session.origin,
        "expires_at": utc_text(session.expires_at_ms),
    }


def type_report(view: TypeView) -> dict[str, Any]:
    """A type with its job counts."""
    info = view.info
    return {
        "type": info.type,
        "paused": info.paused,
        "policy": None if info.policy is None else fields_of(decode_policy(info.policy)),
        "groups": list(info.groups),
        "last_asked": utc_text_or_none(info.last_asked_ms),
        "breaker": info.breaker.value,
        "breaker_failures": info.breaker_failures,
        "breaker_open_until": utc_text_or_none(info.breaker_open_until_ms),
        "breaker_probe": None if info.breaker_probe_key is None else str(info.breaker_probe_key),
        "rate_full_until": utc_text_or_none(info.rate_full_until_ms),
        "jobs": _counts(view.counts),
    }


def policy_report(type: str, view: PolicyView) -> dict[str, Any]:
    """The effective policy of a type; `default` means that the type has no policy, and `set` holds its own fields."""
    return {"type": type, "default": not view.is_own, "policy": fields_of(view.policy), "set": dict(view.fields)}


def group_report(view: GroupView) -> dict[str, Any]:
    """A group with its job counts."""
    return {
        "type": view.type,
        "group": view.group,
        "last_asked": utc_text_or_none(view.last_asked_ms),
        "jobs": _counts(view.counts),
    }


def dead_report(found: Grouped) -> dict[str, Any]:
    """Dead letters in groups.

    `cut` means that older ones were not scanned; `left_out` is the number of groups not listed, and `rejected` the
    number of other jobs that match but were rejected.
    """
    return {
        "groups": [_dead_group(group) for group in found.groups],
        "looked_at": found.looked_at,
        "cut": found.is_cut,
        "left_out": found.left_out,
        "rejected": found.rejected,
    }


def _dead_group(group: DeadLetterGroup) -> dict[str, Any]:
    return {
        "type": group.type,
        "exception_class": group.exception_class or None,
        "fingerprint": group.fingerprint,
        "jobs": group.jobs,
        "first": utc_text(group.first_ms),
        "last": utc_text(group.last_ms),
        "key": str(group.key),
        "error": group.error,
    }


def worker_report(view: WorkerView) -> dict[str, Any]:
    """A worker class."""
    entry = view.entry
    return {
        "id": entry.id,
        "title": entry.title,
        "description": entry.description,
        "on": view.is_on,
        "processes": view.processes,
        "broken": list(view.broken),
        "sources": sorted(entry.types),
        "concurrency": entry.concurrency,
        "execution_timeout_ms": entry.execution_timeout_ms,
        "retries": entry.has_retry,
    }


def trigger_report(view: TriggerView) -> dict[str, Any]:
    """A trigger: `last` is the last scheduled time that has passed, `next` the next one, if known."""
    entry = view.entry
    return {
        **_trigger(entry),
        "description": entry.description,
        "on": view.is_on,
        "schedule": entry.schedule,
        "type": entry.type,
        "variables": _variables(entry),
        "catch_up": entry.is_catchup,
        "lifetime_ms": entry.lifetime_ms,
        "began": utc_text_or_none(view.began_ms),
        "last": utc_text_or_none(view.last_ms),
        "next": utc_text_or_none(view.next_ms),
        "next_unknown": view.next_unknown,
        "served": view.is_served,
    }


def fires_report(entry: TriggerEntry, fires: Sequence[TriggerFire]) -> dict[str, Any]:
    """The latest jobs of a trigger; `point` is null for a job that was fired manually."""
    return {**_trigger(entry), "fires": [_fire(fire) for fire in fires]}


def _fire(fire: TriggerFire) -> dict[str, Any]:
    return {
        "key": str(fire.key),
        "state": fire.state.label,
        "created_at": utc_text(fire.created_at_ms),
        "point": utc_text_or_none(fire.point_ms),
    }


def manager_report(entry: ManagerEntry) -> dict[str, Any]:
    """A running manager."""
    return {
        "name": entry.name,
        "uuid": entry.uuid,
        "host": entry.host,
        "pid": entry.pid,
        "version": entry.version,
        "started_at": utc_text(entry.started_at_ms),
        "workers": list(entry.workers),
    }


def processes_report(
    managers: Sequence[ManagerEntry], processes: Sequence[ProcessView], left_out: int
) -> dict[str, Any]:
    """Running processes; `left_out` is a lower bound on how many streams and pollers are not listed."""
    return {
        "managers": [manager_report(one) for one in managers],
        "processes": [process_report(one) for one in processes],
        "left_out": left_out,
    }


def process_report(view: ProcessView) -> dict[str, Any]:
    """A running process, stream or poller."""
    entry = view.entry
    return {
        "name": entry.name,
        "kind": entry.kind,
        "worker": entry.lease_name,
        "types": list(entry.types),
        "concurrency": entry.concurrency,
        "via": entry.via,
        "manager": entry.manager,
        "host": entry.host,
        "pid": entry.pid,
        "state": entry.state,
        "workers": list(entry.workers),
        "broken": dict(entry.broken),
        "started_at": utc_text(entry.started_at_ms),
        "running": entry.running,
        "ended": entry.ended,
        "restarts": entry.restarts,
        "memory_bytes": entry.memory_bytes,
        "beat": utc_text(view.beat_ms),
        "restarting": view.is_restarting,
    }


def restart_report(entry: ProcessEntry) -> dict[str, Any]:
    """A process whose restart was requested."""
    return {"name": entry.name, "manager": entry.manager, "restarting": True}


def running_report(found: RunningJobs) -> dict[str, Any]:
    """Leased jobs; `others` counts jobs of unregistered workers, and `cut` means that there are more jobs."""
    return {"jobs": [_running(job) for job in found.jobs], "others": found.others, "cut": found.is_cut}


def _running(job: RunningJob) -> dict[str, Any]:
    return {
        "key": str(job.key),
        "type": job.type,
        "tenant": job.tenant,
        "attempt": job.attempt,
        "worker": job.worker,
        "process": job.process,
        "activated_at": utc_text(job.activated_at_ms),
        "deadline": utc_text(job.lease_until_ms),
    }


def worker_switch_report(done: WorkerSwitch) -> dict[str, Any]:
    """A worker that was enabled or disabled."""
    return {**_worker(done.entry), "on": done.is_on, "changed": done.is_changed}


def trigger_switch_report(done: TriggerSwitch) -> dict[str, Any]:
    """A trigger that was enabled or disabled."""
    return {**_trigger(done.entry), "on": done.is_on, "changed": done.is_changed}


def forgotten_report(entry: WorkerEntry, cancelled: int) -> dict[str, Any]:
    """A worker that was deleted, and how many of its pending jobs were cancelled."""
    return {**_worker(entry), "cancelled": cancelled}


def fired_report(entry: TriggerEntry, key: int) -> dict[str, Any]:
    """A trigger that was fired manually, and its job."""
    return {**_trigger(entry), "key": str(key)}


def audit_report(entry: AuditEntry) -> dict[str, Any]:
    """One entry of the audit log."""
    return {
        "name": entry.name,
        "at": utc_text(entry.at_ms),
        "key_id": entry.key_id,
        "who": entry.who,
        "action": entry.action,
        "target": entry.target,
        "origin": entry.origin,
        "detail": dict(entry.detail),
    }


def _worker(entry: WorkerEntry) -> dict[str, Any]:
    return {"id": entry.id, "title": entry.title}


def _trigger(entry: TriggerEntry) -> dict[str, Any]:
    return {"worker": entry.worker_id, "id": entry.id, "title": entry.title}


def _variables(entry: TriggerEntry) -> Any:
    """The variables of a trigger's job; None if they cannot be read."""
    try:
        return require_object("variables", decode(entry.variables))
    except ValueError:
        return None


def _counts(counts: Mapping[State, int]) -> dict[str, int]:
    return {state.label: counts.get(state, 0) for state in State}
