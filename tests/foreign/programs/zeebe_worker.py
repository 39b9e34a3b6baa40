"""A worker written with pyzeebe, as for any Zeebe gateway: python zeebe_worker.py ADDRESS PREFIX polling|streaming

The key comes from WORKER_API_KEY and goes with every call as metadata: by interceptors of the channel that the worker
is given, or, with TLS (WORKER_CA names the CA's file), by call credentials of pyzeebe's own secure channel. It knows
nothing of Everwork's Python code.
"""

# ruff: noqa: INP001
# mypy: ignore-errors
# As its users write it: the stubs are there when it runs, not when it is checked.
# No annotations from the future: pyzeebe looks at them to find the parameter that takes the job.

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from pyzeebe import Job, JobController, ZeebeWorker, create_secure_channel
from pyzeebe.errors import BusinessError

KEY = ("x-api-key", os.environ["WORKER_API_KEY"])


class UnaryKey(grpc.aio.UnaryUnaryClientInterceptor):
    """Puts the key into calls with one answer."""

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add the key."""
        return await continuation(with_key(details), request)


class StreamKey(grpc.aio.UnaryStreamClientInterceptor):
    """Puts the key into calls with a stream of answers."""

    async def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add the key."""
        return await continuation(with_key(details), request)


class CallKey(grpc.AuthMetadataPlugin):
    """Puts the key into every call of a secure channel."""

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        callback((KEY,), None)


def channel_to(address: str) -> grpc.aio.Channel:
    """A channel that sends the key."""
    if "WORKER_CA" not in os.environ:
        return grpc.aio.insecure_channel(address, interceptors=[UnaryKey(), StreamKey()])
    authorities = Path(os.environ["WORKER_CA"]).read_bytes()
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(authorities), grpc.metadata_call_credentials(CallKey())
    )
    return create_secure_channel(address, channel_credentials=credentials)


def with_key(details: Any) -> Any:
    """The same call, with the key."""
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), KEY))


async def back_off(error: Exception, job: Job, controller: JobController) -> None:
    """Fail with a backoff and a variable for the next attempt."""
    await controller.set_failure_status(str(error), retry_back_off_ms=45_000, variables={"tries": 1})
    say("failed", job.key, retries=job.retries)


async def main(address: str, prefix: str, mode: str) -> None:
    """Work until terminated."""
    channel = channel_to(address)
    is_streaming = mode == "streaming"
    worker = ZeebeWorker(channel, name="zeebe-worker", request_timeout=2_000, stream_enabled=is_streaming)
    # A worker that may activate no jobs by polls gets all of them by its stream.
    limits = {"max_jobs_to_activate": 0} if is_streaming else {}

    @worker.task(task_type=f"{prefix}-pay", **limits)
    async def pay(job: Job, amount: int) -> dict[str, Any]:
        say("activated", job.key, retries=job.retries, headers=dict(job.custom_headers), worker=job.worker)
        return {"paid": amount}

    @worker.task(task_type=f"{prefix}-flaky", exception_handler=back_off, **limits)
    async def flaky(job: Job, tries: int = 0) -> dict[str, Any]:
        say("activated", job.key, retries=job.retries, variables=dict(job.variables))
        if not tries:
            raise ConnectionError("the bank does not answer")
        return {"tries": tries}

    @worker.task(task_type=f"{prefix}-poor", **limits)
    async def poor() -> None:
        raise BusinessError("NO_MONEY", "the account is empty")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(worker.stop()))
    say("ready", "")
    await worker.work()
    await channel.close()
    say("stopped", "")


def say(event: str, key: int | str, **facts: Any) -> None:
    """One event, for whoever reads along."""
    sys.stdout.write(json.dumps({"event": event, "key": str(key), **facts}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # It warns of every failed job, and of polls that it may not make.
    asyncio.run(main(*sys.argv[1:]))
