"""Everwork: a durable job engine. This module is the public door and holds nothing else."""

from everwork.core.job import Job
from everwork.core.retry import RetryPolicy
from everwork.core.states import State
from everwork.workers.app import Everwork
from everwork.workers.context import JobContext
from everwork.workers.function import JobFunction, JobKey

__all__ = ["Everwork", "Job", "JobContext", "JobFunction", "JobKey", "RetryPolicy", "State"]
