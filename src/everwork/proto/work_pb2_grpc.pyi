"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: D101, D102, D103, E501, I001, N802
# fmt: off

from typing import Any

import grpc
import grpc.aio

from everwork.proto import work_pb2

class WorkServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Work: grpc.StreamStreamMultiCallable[work_pb2.FromWorker, work_pb2.ToWorker]
    CreateJobs: grpc.UnaryUnaryMultiCallable[work_pb2.CreateJobsRequest, work_pb2.CreateJobsResponse]

class WorkServiceAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Work: grpc.aio.StreamStreamMultiCallable[work_pb2.FromWorker, work_pb2.ToWorker]
    CreateJobs: grpc.aio.UnaryUnaryMultiCallable[work_pb2.CreateJobsRequest, work_pb2.CreateJobsResponse]

class WorkServiceServicer:
    def Work(self, request_iterator: Any, context: Any) -> Any: ...
    def CreateJobs(self, request: Any, context: Any) -> Any: ...

def add_WorkServiceServicer_to_server(servicer: WorkServiceServicer, server: Any) -> None: ...
