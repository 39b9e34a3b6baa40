"""A worker of the fleet written with pyzeebe: `python -m tests.torture.fleet.zeebe`. It has no attempt numbers."""
# No `from __future__ import annotations`: pyzeebe inspects them to find the parameter for the job.

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio
from pyzeebe import Job, JobController, ZeebeWorker
from pyzeebe.errors import BusinessError
from pyzeebe.errors.pyzeebe_errors import PyZeebeError

from tests.torture import plan
from tests.torture.fleet.parts import ZEEBE, Eyes, main, read_caller
from tests.torture.history import HistoryWriter
from tests.torture.process import Life

_OUTCOMES: Final = {"CompleteJob": "complete", "FailJob": "fail", "ThrowError": "throw"}
_REFUSED: Final = {grpc.StatusCode.NOT_FOUND: "not found", grpc.StatusCode.FAILED_PRECONDITION: "wrong state"}
_POLL_MS: Final = 1_500
_STREAM_SECONDS: Final = 20
_PAUSE_SECONDS: Final = 0.1
_FULL_SECONDS: Final = 1
"""How long pyzeebe waits while it has the maximum number of jobs; with its default of 5 s, the drain takes minutes."""


class Witness(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Adds the API key to unary calls, and logs outcomes before and after the call."""

    def __init__(self, key: str, history: HistoryWriter) -> None:
        self._key = key
        self._history = history

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Make the call."""
        name = details.method.decode().rpartition("/")[2] if isinstance(details.method, bytes) else ""
        name = name or str(details.method).rpartition("/")[2]
        if name not in _OUTCOMES:
            return await continuation(with_key(details, self._key), request)
        call_id = self._history.invoked("settle", [shown(_OUTCOMES[name], request)])
        call = await continuation(with_key(details, self._key), request)
        code = await call.code()
        if code is grpc.StatusCode.OK:
            self._history.answered(call_id, ["stored"])
        elif code in _REFUSED:
            self._history.answered(call_id, [_REFUSED[code]])
        else:
            self._history.unknown(call_id, RuntimeError(f"{code}: {await call.details()}"))
        return call


class StreamKey(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    """Adds the API key to calls with a stream of responses."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add the key."""
        return await continuation(with_key(details, self._key), request)


def with_key(details: Any, key: str) -> Any:
    """The same call, with the key."""
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), ("x-api-key", key)))


def shown(kind: str, request: Any) -> dict[str, Any]:
    """An outcome for the history; it applies to the running attempt."""
    result = None
    if kind == "complete":
        result = json.dumps(json.loads(request.variables), separators=(",", ":"))
    return {"k": request.jobKey, "a": 0, "o": kind, "fields": [str(request)], "result": result, "events": []}


async def back_off(error: Exception, job: Job, controller: JobController) -> None:
    """Fail with a short backoff."""
    await controller.set_failure_status(str(error), retry_back_off_ms=50)


async def work(life: Life, history: HistoryWriter, stop: asyncio.Event) -> None:
    """Work until SIGTERM; after every other restart, jobs come from a stream."""
    caller = read_caller()
    eyes = Eyes(history, caller.tenant)
    interceptors: list[Any] = [Witness(caller.key, history), StreamKey(caller.key)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{caller.grpc_port}", interceptors=interceptors)
    is_streaming = life.life % 2 == 1

    def new_worker() -> ZeebeWorker:
        return ZeebeWorker(
            channel, name=f"{life.name}.{life.life}", request_timeout=_POLL_MS, stream_enabled=is_streaming,
            stream_request_timeout=_STREAM_SECONDS * 1_000, max_connection_retries=-1, poll_retry_delay=_FULL_SECONDS,
        )  # fmt: skip

    limits = {"max_jobs_to_activate": 0} if is_streaming else {"max_jobs_to_activate": 20}

    async def run(job: Job, r: str, mark: str) -> dict[str, str]:
        eyes.look("zeebe", mark)
        # Without attempt numbers, the remaining retries distinguish attempts well enough for the plan.
        chosen = plan.action(r, 100 - job.retries)
        if chosen in ("fail-now", "fail-later", "retry", "reject"):
            raise ValueError("failed")
        if chosen == "throw":
            raise BusinessError("TORTURE", "thrown")
        if chosen in ("hang", "slow"):
            await asyncio.sleep(life.lease_ms / 1000 * 1.3)
        return {"token": f"{job.key} by {life.name}.{life.life}"}

    while not stop.is_set():
        worker = new_worker()
        options: dict[str, Any] = {"exception_handler": back_off, "max_running_jobs": 20, **limits}
        task: Any = worker.task
        task(task_type=ZEEBE, timeout_ms=life.lease_ms, **options)(run)
        await work_until(stop, worker)
    await channel.close(None)


async def work_until(stop: asyncio.Event, worker: ZeebeWorker) -> None:
    """Work until SIGTERM; restart pyzeebe when it gives up, as it does after some errors."""
    working = asyncio.create_task(worker.work())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        await worker.stop()
    stopping.cancel()
    [ended] = await asyncio.gather(working, return_exceptions=True)
    if ended is not None and not is_pyzeebes(ended):
        raise ended
    await asyncio.sleep(_PAUSE_SECONDS)


def is_pyzeebes(error: BaseException) -> bool:
    """Whether pyzeebe raises this error about the gateway."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_pyzeebes, error.exceptions))
    return isinstance(error, PyZeebeError | grpc.aio.AioRpcError)


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # It logs every failed job, and every poll that is refused.
    main(work)
