"""Everwork: a durable job engine for Python, on SQLite, PostgreSQL or Redis.

This module exports the public names. Each is imported on first use, so a program loads only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everwork.app.access import Access
    from everwork.app.app import Everwork
    from everwork.app.enqueuer import Enqueuer, FunctionEnqueuer
    from everwork.app.function import JobFunction
    from everwork.app.handle import JobCall, JobHandle, JobKey, SyncJobHandle
    from everwork.app.options import JobOptions
    from everwork.app.schedules import AbstractCronSchedule, CronSchedule
    from everwork.app.settings import Cron, EventSettings, Interval, Trigger, WorkerSettings
    from everwork.codec.job_values import Job
    from everwork.core.breaker import BreakerState, BreakerStatus, CircuitBreaker
    from everwork.core.classify import ErrorRule, Strategy
    from everwork.core.policy import Rate, TypePolicy
    from everwork.core.retry import RetryPolicy
    from everwork.core.states import State
    from everwork.manager.manager import ProcessManager
    from everwork.manager.process import Process, ProcessGroup, Reconnect, Recycle
    from everwork.manager.stores import (
        PostgresBackend,
        PostgresBroker,
        RedisBackend,
        RedisBroker,
        SqliteBackend,
        SqliteBroker,
    )
    from everwork.manager.worker import AbstractWorker
    from everwork.runtime.context import JobContext
    from everwork.runtime.dependencies.plan import Depends
    from everwork.runtime.events import Event, EventCollector
    from everwork.runtime.middleware import Call, Middleware
    from everwork.spool.settings import Spool

__all__ = [
    "AbstractCronSchedule",
    "AbstractWorker",
    "Access",
    "BreakerState",
    "BreakerStatus",
    "Call",
    "CircuitBreaker",
    "Cron",
    "CronSchedule",
    "Depends",
    "Enqueuer",
    "ErrorRule",
    "Event",
    "EventCollector",
    "EventSettings",
    "Everwork",
    "FunctionEnqueuer",
    "Interval",
    "Job",
    "JobCall",
    "JobContext",
    "JobFunction",
    "JobHandle",
    "JobKey",
    "JobOptions",
    "Middleware",
    "PostgresBackend",
    "PostgresBroker",
    "Process",
    "ProcessGroup",
    "ProcessManager",
    "Rate",
    "Reconnect",
    "Recycle",
    "RedisBackend",
    "RedisBroker",
    "RetryPolicy",
    "Spool",
    "SqliteBackend",
    "SqliteBroker",
    "State",
    "Strategy",
    "SyncJobHandle",
    "Trigger",
    "TypePolicy",
    "WorkerSettings",
]

_MODULES = {
    "AbstractCronSchedule": "everwork.app.schedules",
    "AbstractWorker": "everwork.manager.worker",
    "Access": "everwork.app.access",
    "BreakerState": "everwork.core.breaker",
    "BreakerStatus": "everwork.core.breaker",
    "Call": "everwork.runtime.middleware",
    "CircuitBreaker": "everwork.core.breaker",
    "Cron": "everwork.app.settings",
    "CronSchedule": "everwork.app.schedules",
    "Depends": "everwork.runtime.dependencies.plan",
    "Enqueuer": "everwork.app.enqueuer",
    "ErrorRule": "everwork.core.classify",
    "Event": "everwork.runtime.events",
    "EventCollector": "everwork.runtime.events",
    "EventSettings": "everwork.app.settings",
    "Everwork": "everwork.app.app",
    "FunctionEnqueuer": "everwork.app.enqueuer",
    "Interval": "everwork.app.settings",
    "Job": "everwork.codec.job_values",
    "JobCall": "everwork.app.handle",
    "JobContext": "everwork.runtime.context",
    "JobFunction": "everwork.app.function",
    "JobHandle": "everwork.app.handle",
    "JobKey": "everwork.app.handle",
    "JobOptions": "everwork.app.options",
    "Middleware": "everwork.runtime.middleware",
    "PostgresBackend": "everwork.manager.stores",
    "PostgresBroker": "everwork.manager.stores",
    "Process": "everwork.manager.process",
    "ProcessGroup": "everwork.manager.process",
    "ProcessManager": "everwork.manager.manager",
    "Rate": "everwork.core.policy",
    "Reconnect": "everwork.manager.process",
    "Recycle": "everwork.manager.process",
    "RedisBackend": "everwork.manager.stores",
    "RedisBroker": "everwork.manager.stores",
    "RetryPolicy": "everwork.core.retry",
    "Spool": "everwork.spool.settings",
    "SqliteBackend": "everwork.manager.stores",
    "SqliteBroker": "everwork.manager.stores",
    "State": "everwork.core.states",
    "Strategy": "everwork.core.classify",
    "SyncJobHandle": "everwork.app.handle",
    "Trigger": "everwork.app.settings",
    "TypePolicy": "everwork.core.policy",
    "WorkerSettings": "everwork.app.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'everwork' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
