"""Everwork's client, a user's own generated stubs and pyzeebe in one process: python all_together.py ADDRESS TYPE

Each has its own messages of the same names; none may get in another's way.
"""

# ruff: noqa: INP001
# mypy: ignore-errors
# As its users write it: the stubs are there when it runs, not when it is checked.

from __future__ import annotations

import asyncio
import json
import os
import sys

import grpc
import jobs_pb2
import jobs_pb2_grpc
from pyzeebe.proto import gateway_pb2, gateway_pb2_grpc

from everwork.client import Client
from everwork.proto import gateway_pb2 as own_gateway_pb2
from everwork.proto import jobs_pb2 as own_jobs_pb2

KEY = os.environ["WORKER_API_KEY"]
METADATA = [("x-api-key", KEY)]


async def main(address: str, job_type: str) -> None:
    """Three jobs, each activated by one of them and completed by another."""
    async with Client(f"grpc://{address}", key=KEY) as client, grpc.aio.insecure_channel(address) as channel:
        jobs = jobs_pb2_grpc.JobsServiceStub(channel)
        zeebe = gateway_pb2_grpc.GatewayStub(channel)
        keys = [(await client.create(job_type, {"n": n})).key for n in range(3)]
        asked = jobs_pb2.ActivateJobsRequest(type=job_type, worker="own stubs", max_jobs_to_activate=1)
        [first] = [job async for answer in jobs.ActivateJobs(asked, metadata=METADATA) for job in answer.jobs]
        wanted = gateway_pb2.ActivateJobsRequest(type=job_type, worker="pyzeebe", maxJobsToActivate=1, timeout=30_000)
        [second] = [job async for answer in zeebe.ActivateJobs(wanted, metadata=METADATA) for job in answer.jobs]
        [third] = await client.activate(job_type, worker="client")
        await client.complete(int(first.job_key), "by the client")
        done = jobs_pb2.CompleteJobRequest(job_key=str(second.key), variables={"by": "own stubs"})
        await jobs.CompleteJob(done, metadata=METADATA)
        finished = gateway_pb2.CompleteJobRequest(jobKey=third.key, variables='{"by": "pyzeebe"}')
        await zeebe.CompleteJob(finished, metadata=METADATA)
        say(await asyncio.gather(*(client.result(key) for key in keys)))


def say(results: list[object]) -> None:
    """What came of it, and whose classes are whose."""
    apart = [
        own_jobs_pb2.CreateJobRequest is not jobs_pb2.CreateJobRequest,
        own_gateway_pb2.ActivatedJob is not gateway_pb2.ActivatedJob,
    ]
    sys.stdout.write(json.dumps({"event": "done", "key": "", "results": results, "apart": apart}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
