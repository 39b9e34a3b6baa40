"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: N802
# fmt: off

from typing import Any

import grpc
import grpc.aio

from everwork.proto import work_pb2

class WorkServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Work: grpc.StreamStreamMultiCallable[
        work_pb2.FromWorker, work_pb2.ToWorker
    ]
    CreateJobs: grpc.UnaryUnaryMultiCallable[
        work_pb2.CreateJobsRequest, work_pb2.CreateJobsResponse
    ]

class WorkServiceAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Work: grpc.aio.StreamStreamMultiCallable[
        work_pb2.FromWorker, work_pb2.ToWorker
    ]
    CreateJobs: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.CreateJobsRequest, work_pb2.CreateJobsResponse
    ]

class WorkServiceServicer:
    def Work(self, request_iterator: Any, context: Any) -> Any: ...
    def CreateJobs(self, request: Any, context: Any) -> Any: ...

def add_WorkServiceServicer_to_server(servicer: WorkServiceServicer, server: Any) -> None: ...

class DeskServiceStub:
    def __init__(self, channel: grpc.Channel) -> None: ...
    Activate: grpc.UnaryStreamMultiCallable[
        work_pb2.ActivateRequest, work_pb2.ActivateResponse
    ]
    Settle: grpc.UnaryUnaryMultiCallable[
        work_pb2.SettleRequest, work_pb2.SettleResponse
    ]
    SettleLate: grpc.UnaryUnaryMultiCallable[
        work_pb2.SettleRequest, work_pb2.SettleResponse
    ]
    Extend: grpc.UnaryUnaryMultiCallable[
        work_pb2.ExtendRequest, work_pb2.Judged
    ]
    Cancel: grpc.UnaryUnaryMultiCallable[
        work_pb2.CancelRequest, work_pb2.Found
    ]
    Requeue: grpc.UnaryUnaryMultiCallable[
        work_pb2.RequeueRequest, work_pb2.Found
    ]
    RequeueMatching: grpc.UnaryUnaryMultiCallable[
        work_pb2.RequeueMatchingRequest, work_pb2.BulkChange
    ]
    SetRetries: grpc.UnaryUnaryMultiCallable[
        work_pb2.SetRetriesRequest, work_pb2.SetRetriesResponse
    ]
    Reschedule: grpc.UnaryUnaryMultiCallable[
        work_pb2.RescheduleRequest, work_pb2.Found
    ]
    SetPriority: grpc.UnaryUnaryMultiCallable[
        work_pb2.SetPriorityRequest, work_pb2.Found
    ]
    Delete: grpc.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.Found
    ]
    Get: grpc.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.JobView
    ]
    History: grpc.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.HistoryResponse
    ]
    Explain: grpc.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.Explanation
    ]
    List: grpc.UnaryUnaryMultiCallable[
        work_pb2.ListRequest, work_pb2.Page
    ]
    Stats: grpc.UnaryUnaryMultiCallable[
        work_pb2.StatsRequest, work_pb2.StatsResponse
    ]
    Result: grpc.UnaryUnaryMultiCallable[
        work_pb2.ResultRequest, work_pb2.ResultResponse
    ]
    Spooled: grpc.UnaryUnaryMultiCallable[
        work_pb2.SpooledRequest, work_pb2.SpooledJob
    ]

class DeskServiceAsyncStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Activate: grpc.aio.UnaryStreamMultiCallable[
        work_pb2.ActivateRequest, work_pb2.ActivateResponse
    ]
    Settle: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.SettleRequest, work_pb2.SettleResponse
    ]
    SettleLate: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.SettleRequest, work_pb2.SettleResponse
    ]
    Extend: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.ExtendRequest, work_pb2.Judged
    ]
    Cancel: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.CancelRequest, work_pb2.Found
    ]
    Requeue: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.RequeueRequest, work_pb2.Found
    ]
    RequeueMatching: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.RequeueMatchingRequest, work_pb2.BulkChange
    ]
    SetRetries: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.SetRetriesRequest, work_pb2.SetRetriesResponse
    ]
    Reschedule: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.RescheduleRequest, work_pb2.Found
    ]
    SetPriority: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.SetPriorityRequest, work_pb2.Found
    ]
    Delete: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.Found
    ]
    Get: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.JobView
    ]
    History: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.HistoryResponse
    ]
    Explain: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.JobRequest, work_pb2.Explanation
    ]
    List: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.ListRequest, work_pb2.Page
    ]
    Stats: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.StatsRequest, work_pb2.StatsResponse
    ]
    Result: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.ResultRequest, work_pb2.ResultResponse
    ]
    Spooled: grpc.aio.UnaryUnaryMultiCallable[
        work_pb2.SpooledRequest, work_pb2.SpooledJob
    ]

class DeskServiceServicer:
    def Activate(self, request: Any, context: Any) -> Any: ...
    def Settle(self, request: Any, context: Any) -> Any: ...
    def SettleLate(self, request: Any, context: Any) -> Any: ...
    def Extend(self, request: Any, context: Any) -> Any: ...
    def Cancel(self, request: Any, context: Any) -> Any: ...
    def Requeue(self, request: Any, context: Any) -> Any: ...
    def RequeueMatching(self, request: Any, context: Any) -> Any: ...
    def SetRetries(self, request: Any, context: Any) -> Any: ...
    def Reschedule(self, request: Any, context: Any) -> Any: ...
    def SetPriority(self, request: Any, context: Any) -> Any: ...
    def Delete(self, request: Any, context: Any) -> Any: ...
    def Get(self, request: Any, context: Any) -> Any: ...
    def History(self, request: Any, context: Any) -> Any: ...
    def Explain(self, request: Any, context: Any) -> Any: ...
    def List(self, request: Any, context: Any) -> Any: ...
    def Stats(self, request: Any, context: Any) -> Any: ...
    def Result(self, request: Any, context: Any) -> Any: ...
    def Spooled(self, request: Any, context: Any) -> Any: ...

def add_DeskServiceServicer_to_server(servicer: DeskServiceServicer, server: Any) -> None: ...
