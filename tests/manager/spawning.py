"""A process of a manager, without the manager."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from everwork import Reconnect
from everwork.manager.child import ChildSpec
from everwork.manager.process_handle import ProcessHandle
from everwork.manager.worker_pool import WorkerSpec
from tests.manager.workers import Echo


def a_process(folder: Path) -> ProcessHandle:
    """A real one, which nobody waits for."""
    spec = ChildSpec(
        url=f"sqlite:///{folder}/jobs.db",
        manager="manager",
        name="process",
        workers=(WorkerSpec(worker=Echo, queues=(), index=0, id="echo", is_final=True),),
        shutdown_timeout=1,
        reconnect=Reconnect(),
        lease_ms=1_000,
        log_format=None,
        log_level="INFO",
    )
    return ProcessHandle(multiprocessing.get_context("spawn"), spec, slots=8, off=set(), on_change=lambda: None)
