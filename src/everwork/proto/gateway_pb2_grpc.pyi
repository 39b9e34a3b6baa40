"""Generated from proto/zeebe/gateway.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: N802
# fmt: off

from typing import Any

import grpc
import grpc.aio

from everwork.proto import gateway_pb2

class GatewayStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    ActivateJobs: grpc.UnaryStreamMultiCallable[
        gateway_pb2.ActivateJobsRequest, gateway_pb2.ActivateJobsResponse
    ]
    StreamActivatedJobs: grpc.UnaryStreamMultiCallable[
        gateway_pb2.StreamActivatedJobsRequest, gateway_pb2.ActivatedJob
    ]
    CompleteJob: grpc.UnaryUnaryMultiCallable[
        gateway_pb2.CompleteJobRequest, gateway_pb2.CompleteJobResponse
    ]
    FailJob: grpc.UnaryUnaryMultiCallable[
        gateway_pb2.FailJobRequest, gateway_pb2.FailJobResponse
    ]
    ThrowError: grpc.UnaryUnaryMultiCallable[
        gateway_pb2.ThrowErrorRequest, gateway_pb2.ThrowErrorResponse
    ]
    Topology: grpc.UnaryUnaryMultiCallable[
        gateway_pb2.TopologyRequest, gateway_pb2.TopologyResponse
    ]
    UpdateJobRetries: grpc.UnaryUnaryMultiCallable[
        gateway_pb2.UpdateJobRetriesRequest, gateway_pb2.UpdateJobRetriesResponse
    ]
    UpdateJobTimeout: grpc.UnaryUnaryMultiCallable[
        gateway_pb2.UpdateJobTimeoutRequest, gateway_pb2.UpdateJobTimeoutResponse
    ]

class GatewayAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    ActivateJobs: grpc.aio.UnaryStreamMultiCallable[
        gateway_pb2.ActivateJobsRequest, gateway_pb2.ActivateJobsResponse
    ]
    StreamActivatedJobs: grpc.aio.UnaryStreamMultiCallable[
        gateway_pb2.StreamActivatedJobsRequest, gateway_pb2.ActivatedJob
    ]
    CompleteJob: grpc.aio.UnaryUnaryMultiCallable[
        gateway_pb2.CompleteJobRequest, gateway_pb2.CompleteJobResponse
    ]
    FailJob: grpc.aio.UnaryUnaryMultiCallable[
        gateway_pb2.FailJobRequest, gateway_pb2.FailJobResponse
    ]
    ThrowError: grpc.aio.UnaryUnaryMultiCallable[
        gateway_pb2.ThrowErrorRequest, gateway_pb2.ThrowErrorResponse
    ]
    Topology: grpc.aio.UnaryUnaryMultiCallable[
        gateway_pb2.TopologyRequest, gateway_pb2.TopologyResponse
    ]
    UpdateJobRetries: grpc.aio.UnaryUnaryMultiCallable[
        gateway_pb2.UpdateJobRetriesRequest, gateway_pb2.UpdateJobRetriesResponse
    ]
    UpdateJobTimeout: grpc.aio.UnaryUnaryMultiCallable[
        gateway_pb2.UpdateJobTimeoutRequest, gateway_pb2.UpdateJobTimeoutResponse
    ]

class GatewayServicer:
    def ActivateJobs(self, request: Any, context: Any) -> Any: ...
    def StreamActivatedJobs(self, request: Any, context: Any) -> Any: ...
    def CompleteJob(self, request: Any, context: Any) -> Any: ...
    def FailJob(self, request: Any, context: Any) -> Any: ...
    def ThrowError(self, request: Any, context: Any) -> Any: ...
    def Topology(self, request: Any, context: Any) -> Any: ...
    def UpdateJobRetries(self, request: Any, context: Any) -> Any: ...
    def UpdateJobTimeout(self, request: Any, context: Any) -> Any: ...

def add_GatewayServicer_to_server(servicer: GatewayServicer, server: Any) -> None: ...
