"""Everwork: a durable job engine. This module is the public door and holds nothing else.

Names are loaded when they are first used, so that a program pays only for what it takes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everwork.core.breaker import CircuitBreaker
    from everwork.core.classify import ErrorRule, Strategy
    from everwork.core.job import Job
    from everwork.core.policy import Rate, TypePolicy
    from everwork.core.retry import RetryPolicy
    from everwork.core.states import State
    from everwork.workers.app import Everwork
    from everwork.workers.context import JobContext
    from everwork.workers.cron import AbstractCronSchedule, CronSchedule
    from everwork.workers.event import Event, EventCollector
    from everwork.workers.function import JobFunction, JobKey
    from everwork.workers.manager import ProcessManager
    from everwork.workers.middleware import Call, Middleware
    from everwork.workers.process import Process, ProcessGroup, Reconnect, Recycle
    from everwork.workers.settings import Cron, EventSettings, Interval, Trigger, WorkerSettings
    from everwork.workers.stores import (
        PostgresBackend,
        PostgresBroker,
        RedisBackend,
        RedisBroker,
        SqliteBackend,
        SqliteBroker,
    )
    from everwork.workers.worker import AbstractWorker

__all__ = [
    "AbstractCronSchedule",
    "AbstractWorker",
    "Call",
    "CircuitBreaker",
    "Cron",
    "CronSchedule",
    "ErrorRule",
    "Event",
    "EventCollector",
    "EventSettings",
    "Everwork",
    "Interval",
    "Job",
    "JobContext",
    "JobFunction",
    "JobKey",
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
    "SqliteBackend",
    "SqliteBroker",
    "State",
    "Strategy",
    "Trigger",
    "TypePolicy",
    "WorkerSettings",
]

_HOMES = {
    "AbstractCronSchedule": "everwork.workers.cron",
    "AbstractWorker": "everwork.workers.worker",
    "Call": "everwork.workers.middleware",
    "CircuitBreaker": "everwork.core.breaker",
    "Cron": "everwork.workers.settings",
    "CronSchedule": "everwork.workers.cron",
    "ErrorRule": "everwork.core.classify",
    "Event": "everwork.workers.event",
    "EventCollector": "everwork.workers.event",
    "EventSettings": "everwork.workers.settings",
    "Everwork": "everwork.workers.app",
    "Interval": "everwork.workers.settings",
    "Job": "everwork.core.job",
    "JobContext": "everwork.workers.context",
    "JobFunction": "everwork.workers.function",
    "JobKey": "everwork.workers.function",
    "Middleware": "everwork.workers.middleware",
    "PostgresBackend": "everwork.workers.stores",
    "PostgresBroker": "everwork.workers.stores",
    "Process": "everwork.workers.process",
    "ProcessGroup": "everwork.workers.process",
    "ProcessManager": "everwork.workers.manager",
    "Rate": "everwork.core.policy",
    "Reconnect": "everwork.workers.process",
    "Recycle": "everwork.workers.process",
    "RedisBackend": "everwork.workers.stores",
    "RedisBroker": "everwork.workers.stores",
    "RetryPolicy": "everwork.core.retry",
    "SqliteBackend": "everwork.workers.stores",
    "SqliteBroker": "everwork.workers.stores",
    "State": "everwork.core.states",
    "Strategy": "everwork.core.classify",
    "Trigger": "everwork.workers.settings",
    "TypePolicy": "everwork.core.policy",
    "WorkerSettings": "everwork.workers.settings",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'everwork' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
