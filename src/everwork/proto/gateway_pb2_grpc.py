"""Generated from proto/zeebe/gateway.proto by tools/generate_proto.py. Do not edit."""

import grpc

from everwork.proto import gateway_pb2


class GatewayStub:
    def __init__(self, channel):
        self.ActivateJobs = channel.unary_stream(
            '/gateway_protocol.Gateway/ActivateJobs',
            request_serializer=gateway_pb2.ActivateJobsRequest.SerializeToString,
            response_deserializer=gateway_pb2.ActivateJobsResponse.FromString,
        )
        self.StreamActivatedJobs = channel.unary_stream(
            '/gateway_protocol.Gateway/StreamActivatedJobs',
            request_serializer=gateway_pb2.StreamActivatedJobsRequest.SerializeToString,
            response_deserializer=gateway_pb2.ActivatedJob.FromString,
        )
        self.CompleteJob = channel.unary_unary(
            '/gateway_protocol.Gateway/CompleteJob',
            request_serializer=gateway_pb2.CompleteJobRequest.SerializeToString,
            response_deserializer=gateway_pb2.CompleteJobResponse.FromString,
        )
        self.FailJob = channel.unary_unary(
            '/gateway_protocol.Gateway/FailJob',
            request_serializer=gateway_pb2.FailJobRequest.SerializeToString,
            response_deserializer=gateway_pb2.FailJobResponse.FromString,
        )
        self.ThrowError = channel.unary_unary(
            '/gateway_protocol.Gateway/ThrowError',
            request_serializer=gateway_pb2.ThrowErrorRequest.SerializeToString,
            response_deserializer=gateway_pb2.ThrowErrorResponse.FromString,
        )
        self.Topology = channel.unary_unary(
            '/gateway_protocol.Gateway/Topology',
            request_serializer=gateway_pb2.TopologyRequest.SerializeToString,
            response_deserializer=gateway_pb2.TopologyResponse.FromString,
        )
        self.UpdateJobRetries = channel.unary_unary(
            '/gateway_protocol.Gateway/UpdateJobRetries',
            request_serializer=gateway_pb2.UpdateJobRetriesRequest.SerializeToString,
            response_deserializer=gateway_pb2.UpdateJobRetriesResponse.FromString,
        )
        self.UpdateJobTimeout = channel.unary_unary(
            '/gateway_protocol.Gateway/UpdateJobTimeout',
            request_serializer=gateway_pb2.UpdateJobTimeoutRequest.SerializeToString,
            response_deserializer=gateway_pb2.UpdateJobTimeoutResponse.FromString,
        )


GatewayAsyncStub = GatewayStub


class GatewayServicer:
    def ActivateJobs(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def StreamActivatedJobs(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def CompleteJob(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def FailJob(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def ThrowError(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def Topology(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def UpdateJobRetries(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def UpdateJobTimeout(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')


def add_GatewayServicer_to_server(servicer, server):
    handlers = {
        'ActivateJobs': grpc.unary_stream_rpc_method_handler(
            servicer.ActivateJobs,
            request_deserializer=gateway_pb2.ActivateJobsRequest.FromString,
            response_serializer=gateway_pb2.ActivateJobsResponse.SerializeToString,
        ),
        'StreamActivatedJobs': grpc.unary_stream_rpc_method_handler(
            servicer.StreamActivatedJobs,
            request_deserializer=gateway_pb2.StreamActivatedJobsRequest.FromString,
            response_serializer=gateway_pb2.ActivatedJob.SerializeToString,
        ),
        'CompleteJob': grpc.unary_unary_rpc_method_handler(
            servicer.CompleteJob,
            request_deserializer=gateway_pb2.CompleteJobRequest.FromString,
            response_serializer=gateway_pb2.CompleteJobResponse.SerializeToString,
        ),
        'FailJob': grpc.unary_unary_rpc_method_handler(
            servicer.FailJob,
            request_deserializer=gateway_pb2.FailJobRequest.FromString,
            response_serializer=gateway_pb2.FailJobResponse.SerializeToString,
        ),
        'ThrowError': grpc.unary_unary_rpc_method_handler(
            servicer.ThrowError,
            request_deserializer=gateway_pb2.ThrowErrorRequest.FromString,
            response_serializer=gateway_pb2.ThrowErrorResponse.SerializeToString,
        ),
        'Topology': grpc.unary_unary_rpc_method_handler(
            servicer.Topology,
            request_deserializer=gateway_pb2.TopologyRequest.FromString,
            response_serializer=gateway_pb2.TopologyResponse.SerializeToString,
        ),
        'UpdateJobRetries': grpc.unary_unary_rpc_method_handler(
            servicer.UpdateJobRetries,
            request_deserializer=gateway_pb2.UpdateJobRetriesRequest.FromString,
            response_serializer=gateway_pb2.UpdateJobRetriesResponse.SerializeToString,
        ),
        'UpdateJobTimeout': grpc.unary_unary_rpc_method_handler(
            servicer.UpdateJobTimeout,
            request_deserializer=gateway_pb2.UpdateJobTimeoutRequest.FromString,
            response_serializer=gateway_pb2.UpdateJobTimeoutResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('gateway_protocol.Gateway', handlers),))
