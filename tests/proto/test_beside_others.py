"""Our generated code beside a user's own of the same messages, and beside pyzeebe's, in one process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from everwork.proto import PROTO_PATH
from tests.server.grpc.running import KEY, running_server
from tests.stores import url_of

PROGRAM = '''
"""Three kinds of generated code make a call each; the order of the imports is the test's."""
import asyncio
import importlib
import sys

port, key, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)

import grpc
import grpc.aio
import jobs_pb2
import jobs_pb2_grpc
from pyzeebe.proto import gateway_pb2, gateway_pb2_grpc
from everwork.proto import gateway_pb2 as our_gateway, jobs_pb2 as ours, jobs_pb2_grpc as our_grpc

METADATA = (("x-api-key", key),)


async def main():
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        theirs = jobs_pb2_grpc.JobsServiceStub(channel).CreateJob(
            jobs_pb2.CreateJobRequest(job_type="t", variables={"a": "1"}), metadata=METADATA
        )
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = await our_grpc.JobsServiceAsyncStub(channel).GetJob(
            ours.GetJobRequest(job_key=theirs.job_key), metadata=METADATA
        )
        zeebe = await gateway_pb2_grpc.GatewayStub(channel).Topology(gateway_pb2.TopologyRequest(), metadata=METADATA)
    assert isinstance(theirs, jobs_pb2.CreateJobResponse) and not isinstance(theirs, ours.CreateJobResponse)
    assert isinstance(zeebe, gateway_pb2.TopologyResponse) and not isinstance(zeebe, our_gateway.TopologyResponse)
    print(found.job.job_key == theirs.job_key, dict(found.job.variables), zeebe.clusterSize)


asyncio.run(main())
'''

ORDERS = [["jobs_pb2", "pyzeebe", "everwork.proto.jobs_pb2"], ["everwork.proto.gateway_pb2", "pyzeebe", "jobs_pb2"]]


@pytest.mark.parametrize("order", ORDERS)
async def test_all_three_live_in_one_process(order: list[str], tmp_path: Path) -> None:
    out = [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    await run("-m", "grpc_tools.protoc", f"-I{PROTO_PATH}", *out, "jobs.proto")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    async with running_server(url_of("sqlite", tmp_path)) as server:
        printed = await run(str(program), str(server.port), KEY, *order)
    assert printed == "True {'a': '1'} 1\n"


async def run(*arguments: str) -> str:
    """What a Python program prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()
