"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

import grpc

from everwork.proto import work_pb2


class WorkServiceStub:
    def __init__(self, channel):
        self.Work = channel.stream_stream(
            '/everwork.v1.WorkService/Work',
            request_serializer=work_pb2.FromWorker.SerializeToString,
            response_deserializer=work_pb2.ToWorker.FromString,
        )
        self.CreateJobs = channel.unary_unary(
            '/everwork.v1.WorkService/CreateJobs',
            request_serializer=work_pb2.CreateJobsRequest.SerializeToString,
            response_deserializer=work_pb2.CreateJobsResponse.FromString,
        )


WorkServiceAsyncStub = WorkServiceStub


class WorkServiceServicer:
    def Work(self, request_iterator, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def CreateJobs(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')


def add_WorkServiceServicer_to_server(servicer, server):
    handlers = {
        'Work': grpc.stream_stream_rpc_method_handler(
            servicer.Work,
            request_deserializer=work_pb2.FromWorker.FromString,
            response_serializer=work_pb2.ToWorker.SerializeToString,
        ),
        'CreateJobs': grpc.unary_unary_rpc_method_handler(
            servicer.CreateJobs,
            request_deserializer=work_pb2.CreateJobsRequest.FromString,
            response_serializer=work_pb2.CreateJobsResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('everwork.v1.WorkService', handlers),))


class DeskServiceStub:
    def __init__(self, channel):
        self.Activate = channel.unary_stream(
            '/everwork.v1.DeskService/Activate',
            request_serializer=work_pb2.ActivateRequest.SerializeToString,
            response_deserializer=work_pb2.ActivateResponse.FromString,
        )
        self.Settle = channel.unary_unary(
            '/everwork.v1.DeskService/Settle',
            request_serializer=work_pb2.SettleRequest.SerializeToString,
            response_deserializer=work_pb2.SettleResponse.FromString,
        )
        self.SettleLate = channel.unary_unary(
            '/everwork.v1.DeskService/SettleLate',
            request_serializer=work_pb2.SettleRequest.SerializeToString,
            response_deserializer=work_pb2.SettleResponse.FromString,
        )
        self.Extend = channel.unary_unary(
            '/everwork.v1.DeskService/Extend',
            request_serializer=work_pb2.ExtendRequest.SerializeToString,
            response_deserializer=work_pb2.Judged.FromString,
        )
        self.Cancel = channel.unary_unary(
            '/everwork.v1.DeskService/Cancel',
            request_serializer=work_pb2.CancelRequest.SerializeToString,
            response_deserializer=work_pb2.Found.FromString,
        )
        self.Requeue = channel.unary_unary(
            '/everwork.v1.DeskService/Requeue',
            request_serializer=work_pb2.RequeueRequest.SerializeToString,
            response_deserializer=work_pb2.Found.FromString,
        )
        self.RequeueMatching = channel.unary_unary(
            '/everwork.v1.DeskService/RequeueMatching',
            request_serializer=work_pb2.RequeueMatchingRequest.SerializeToString,
            response_deserializer=work_pb2.BulkChange.FromString,
        )
        self.SetRetries = channel.unary_unary(
            '/everwork.v1.DeskService/SetRetries',
            request_serializer=work_pb2.SetRetriesRequest.SerializeToString,
            response_deserializer=work_pb2.SetRetriesResponse.FromString,
        )
        self.Reschedule = channel.unary_unary(
            '/everwork.v1.DeskService/Reschedule',
            request_serializer=work_pb2.RescheduleRequest.SerializeToString,
            response_deserializer=work_pb2.Found.FromString,
        )
        self.SetPriority = channel.unary_unary(
            '/everwork.v1.DeskService/SetPriority',
            request_serializer=work_pb2.SetPriorityRequest.SerializeToString,
            response_deserializer=work_pb2.Found.FromString,
        )
        self.Delete = channel.unary_unary(
            '/everwork.v1.DeskService/Delete',
            request_serializer=work_pb2.JobRequest.SerializeToString,
            response_deserializer=work_pb2.Found.FromString,
        )
        self.Get = channel.unary_unary(
            '/everwork.v1.DeskService/Get',
            request_serializer=work_pb2.JobRequest.SerializeToString,
            response_deserializer=work_pb2.JobView.FromString,
        )
        self.History = channel.unary_unary(
            '/everwork.v1.DeskService/History',
            request_serializer=work_pb2.JobRequest.SerializeToString,
            response_deserializer=work_pb2.HistoryResponse.FromString,
        )
        self.Explain = channel.unary_unary(
            '/everwork.v1.DeskService/Explain',
            request_serializer=work_pb2.JobRequest.SerializeToString,
            response_deserializer=work_pb2.Explanation.FromString,
        )
        self.List = channel.unary_unary(
            '/everwork.v1.DeskService/List',
            request_serializer=work_pb2.ListRequest.SerializeToString,
            response_deserializer=work_pb2.Page.FromString,
        )
        self.Stats = channel.unary_unary(
            '/everwork.v1.DeskService/Stats',
            request_serializer=work_pb2.StatsRequest.SerializeToString,
            response_deserializer=work_pb2.StatsResponse.FromString,
        )
        self.Result = channel.unary_unary(
            '/everwork.v1.DeskService/Result',
            request_serializer=work_pb2.ResultRequest.SerializeToString,
            response_deserializer=work_pb2.ResultResponse.FromString,
        )
        self.Spooled = channel.unary_unary(
            '/everwork.v1.DeskService/Spooled',
            request_serializer=work_pb2.SpooledRequest.SerializeToString,
            response_deserializer=work_pb2.SpooledJob.FromString,
        )


DeskServiceAsyncStub = DeskServiceStub


class DeskServiceServicer:
    def Activate(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Settle(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def SettleLate(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Extend(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Cancel(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Requeue(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def RequeueMatching(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def SetRetries(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Reschedule(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def SetPriority(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Delete(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Get(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def History(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Explain(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def List(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Stats(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Result(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Spooled(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')


def add_DeskServiceServicer_to_server(servicer, server):
    handlers = {
        'Activate': grpc.unary_stream_rpc_method_handler(
            servicer.Activate,
            request_deserializer=work_pb2.ActivateRequest.FromString,
            response_serializer=work_pb2.ActivateResponse.SerializeToString,
        ),
        'Settle': grpc.unary_unary_rpc_method_handler(
            servicer.Settle,
            request_deserializer=work_pb2.SettleRequest.FromString,
            response_serializer=work_pb2.SettleResponse.SerializeToString,
        ),
        'SettleLate': grpc.unary_unary_rpc_method_handler(
            servicer.SettleLate,
            request_deserializer=work_pb2.SettleRequest.FromString,
            response_serializer=work_pb2.SettleResponse.SerializeToString,
        ),
        'Extend': grpc.unary_unary_rpc_method_handler(
            servicer.Extend,
            request_deserializer=work_pb2.ExtendRequest.FromString,
            response_serializer=work_pb2.Judged.SerializeToString,
        ),
        'Cancel': grpc.unary_unary_rpc_method_handler(
            servicer.Cancel,
            request_deserializer=work_pb2.CancelRequest.FromString,
            response_serializer=work_pb2.Found.SerializeToString,
        ),
        'Requeue': grpc.unary_unary_rpc_method_handler(
            servicer.Requeue,
            request_deserializer=work_pb2.RequeueRequest.FromString,
            response_serializer=work_pb2.Found.SerializeToString,
        ),
        'RequeueMatching': grpc.unary_unary_rpc_method_handler(
            servicer.RequeueMatching,
            request_deserializer=work_pb2.RequeueMatchingRequest.FromString,
            response_serializer=work_pb2.BulkChange.SerializeToString,
        ),
        'SetRetries': grpc.unary_unary_rpc_method_handler(
            servicer.SetRetries,
            request_deserializer=work_pb2.SetRetriesRequest.FromString,
            response_serializer=work_pb2.SetRetriesResponse.SerializeToString,
        ),
        'Reschedule': grpc.unary_unary_rpc_method_handler(
            servicer.Reschedule,
            request_deserializer=work_pb2.RescheduleRequest.FromString,
            response_serializer=work_pb2.Found.SerializeToString,
        ),
        'SetPriority': grpc.unary_unary_rpc_method_handler(
            servicer.SetPriority,
            request_deserializer=work_pb2.SetPriorityRequest.FromString,
            response_serializer=work_pb2.Found.SerializeToString,
        ),
        'Delete': grpc.unary_unary_rpc_method_handler(
            servicer.Delete,
            request_deserializer=work_pb2.JobRequest.FromString,
            response_serializer=work_pb2.Found.SerializeToString,
        ),
        'Get': grpc.unary_unary_rpc_method_handler(
            servicer.Get,
            request_deserializer=work_pb2.JobRequest.FromString,
            response_serializer=work_pb2.JobView.SerializeToString,
        ),
        'History': grpc.unary_unary_rpc_method_handler(
            servicer.History,
            request_deserializer=work_pb2.JobRequest.FromString,
            response_serializer=work_pb2.HistoryResponse.SerializeToString,
        ),
        'Explain': grpc.unary_unary_rpc_method_handler(
            servicer.Explain,
            request_deserializer=work_pb2.JobRequest.FromString,
            response_serializer=work_pb2.Explanation.SerializeToString,
        ),
        'List': grpc.unary_unary_rpc_method_handler(
            servicer.List,
            request_deserializer=work_pb2.ListRequest.FromString,
            response_serializer=work_pb2.Page.SerializeToString,
        ),
        'Stats': grpc.unary_unary_rpc_method_handler(
            servicer.Stats,
            request_deserializer=work_pb2.StatsRequest.FromString,
            response_serializer=work_pb2.StatsResponse.SerializeToString,
        ),
        'Result': grpc.unary_unary_rpc_method_handler(
            servicer.Result,
            request_deserializer=work_pb2.ResultRequest.FromString,
            response_serializer=work_pb2.ResultResponse.SerializeToString,
        ),
        'Spooled': grpc.unary_unary_rpc_method_handler(
            servicer.Spooled,
            request_deserializer=work_pb2.SpooledRequest.FromString,
            response_serializer=work_pb2.SpooledJob.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('everwork.v1.DeskService', handlers),))
