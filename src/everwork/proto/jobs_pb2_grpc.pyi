"""Generated from proto/atom/jobs/v1/jobs.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: N802
# fmt: off

from typing import Any

import grpc
import grpc.aio

from everwork.proto import jobs_pb2

class JobsServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    CreateJob: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.CreateJobRequest, jobs_pb2.CreateJobResponse
    ]
    ActivateJobs: grpc.UnaryStreamMultiCallable[
        jobs_pb2.ActivateJobsRequest, jobs_pb2.ActivateJobsResponse
    ]
    CompleteJob: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.CompleteJobRequest, jobs_pb2.CompleteJobResponse
    ]
    FailJob: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.FailJobRequest, jobs_pb2.FailJobResponse
    ]
    ThrowError: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.ThrowErrorRequest, jobs_pb2.ThrowErrorResponse
    ]
    UpdateJobRetries: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.UpdateJobRetriesRequest, jobs_pb2.UpdateJobRetriesResponse
    ]
    UpdateJobTimeout: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.UpdateJobTimeoutRequest, jobs_pb2.UpdateJobTimeoutResponse
    ]
    CancelJob: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.CancelJobRequest, jobs_pb2.CancelJobResponse
    ]
    GetJob: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.GetJobRequest, jobs_pb2.GetJobResponse
    ]
    ListJobs: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.ListJobsRequest, jobs_pb2.ListJobsResponse
    ]
    GetJobStats: grpc.UnaryUnaryMultiCallable[
        jobs_pb2.GetJobStatsRequest, jobs_pb2.GetJobStatsResponse
    ]

class JobsServiceAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    CreateJob: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.CreateJobRequest, jobs_pb2.CreateJobResponse
    ]
    ActivateJobs: grpc.aio.UnaryStreamMultiCallable[
        jobs_pb2.ActivateJobsRequest, jobs_pb2.ActivateJobsResponse
    ]
    CompleteJob: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.CompleteJobRequest, jobs_pb2.CompleteJobResponse
    ]
    FailJob: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.FailJobRequest, jobs_pb2.FailJobResponse
    ]
    ThrowError: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.ThrowErrorRequest, jobs_pb2.ThrowErrorResponse
    ]
    UpdateJobRetries: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.UpdateJobRetriesRequest, jobs_pb2.UpdateJobRetriesResponse
    ]
    UpdateJobTimeout: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.UpdateJobTimeoutRequest, jobs_pb2.UpdateJobTimeoutResponse
    ]
    CancelJob: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.CancelJobRequest, jobs_pb2.CancelJobResponse
    ]
    GetJob: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.GetJobRequest, jobs_pb2.GetJobResponse
    ]
    ListJobs: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.ListJobsRequest, jobs_pb2.ListJobsResponse
    ]
    GetJobStats: grpc.aio.UnaryUnaryMultiCallable[
        jobs_pb2.GetJobStatsRequest, jobs_pb2.GetJobStatsResponse
    ]

class JobsServiceServicer:
    def CreateJob(self, request: Any, context: Any) -> Any: ...
    def ActivateJobs(self, request: Any, context: Any) -> Any: ...
    def CompleteJob(self, request: Any, context: Any) -> Any: ...
    def FailJob(self, request: Any, context: Any) -> Any: ...
    def ThrowError(self, request: Any, context: Any) -> Any: ...
    def UpdateJobRetries(self, request: Any, context: Any) -> Any: ...
    def UpdateJobTimeout(self, request: Any, context: Any) -> Any: ...
    def CancelJob(self, request: Any, context: Any) -> Any: ...
    def GetJob(self, request: Any, context: Any) -> Any: ...
    def ListJobs(self, request: Any, context: Any) -> Any: ...
    def GetJobStats(self, request: Any, context: Any) -> Any: ...

def add_JobsServiceServicer_to_server(servicer: JobsServiceServicer, server: Any) -> None: ...
