"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: D101, D102, D103, E501, I001, N802
# fmt: off

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
