"""Generated from proto/atom/jobs/v1/jobs.proto by tools/generate_proto.py. Do not edit."""

import grpc

from everwork.proto import jobs_pb2


class JobsServiceStub:
    def __init__(self, channel):
        self.CreateJob = channel.unary_unary(
            '/atom.jobs.v1.JobsService/CreateJob',
            request_serializer=jobs_pb2.CreateJobRequest.SerializeToString,
            response_deserializer=jobs_pb2.CreateJobResponse.FromString,
        )
        self.ActivateJobs = channel.unary_stream(
            '/atom.jobs.v1.JobsService/ActivateJobs',
            request_serializer=jobs_pb2.ActivateJobsRequest.SerializeToString,
            response_deserializer=jobs_pb2.ActivateJobsResponse.FromString,
        )
        self.CompleteJob = channel.unary_unary(
            '/atom.jobs.v1.JobsService/CompleteJob',
            request_serializer=jobs_pb2.CompleteJobRequest.SerializeToString,
            response_deserializer=jobs_pb2.CompleteJobResponse.FromString,
        )
        self.FailJob = channel.unary_unary(
            '/atom.jobs.v1.JobsService/FailJob',
            request_serializer=jobs_pb2.FailJobRequest.SerializeToString,
            response_deserializer=jobs_pb2.FailJobResponse.FromString,
        )
        self.ThrowError = channel.unary_unary(
            '/atom.jobs.v1.JobsService/ThrowError',
            request_serializer=jobs_pb2.ThrowErrorRequest.SerializeToString,
            response_deserializer=jobs_pb2.ThrowErrorResponse.FromString,
        )
        self.UpdateJobRetries = channel.unary_unary(
            '/atom.jobs.v1.JobsService/UpdateJobRetries',
            request_serializer=jobs_pb2.UpdateJobRetriesRequest.SerializeToString,
            response_deserializer=jobs_pb2.UpdateJobRetriesResponse.FromString,
        )
        self.UpdateJobTimeout = channel.unary_unary(
            '/atom.jobs.v1.JobsService/UpdateJobTimeout',
            request_serializer=jobs_pb2.UpdateJobTimeoutRequest.SerializeToString,
            response_deserializer=jobs_pb2.UpdateJobTimeoutResponse.FromString,
        )
        self.CancelJob = channel.unary_unary(
            '/atom.jobs.v1.JobsService/CancelJob',
            request_serializer=jobs_pb2.CancelJobRequest.SerializeToString,
            response_deserializer=jobs_pb2.CancelJobResponse.FromString,
        )
        self.GetJob = channel.unary_unary(
            '/atom.jobs.v1.JobsService/GetJob',
            request_serializer=jobs_pb2.GetJobRequest.SerializeToString,
            response_deserializer=jobs_pb2.GetJobResponse.FromString,
        )
        self.ListJobs = channel.unary_unary(
            '/atom.jobs.v1.JobsService/ListJobs',
            request_serializer=jobs_pb2.ListJobsRequest.SerializeToString,
            response_deserializer=jobs_pb2.ListJobsResponse.FromString,
        )
        self.GetJobStats = channel.unary_unary(
            '/atom.jobs.v1.JobsService/GetJobStats',
            request_serializer=jobs_pb2.GetJobStatsRequest.SerializeToString,
            response_deserializer=jobs_pb2.GetJobStatsResponse.FromString,
        )


JobsServiceAsyncStub = JobsServiceStub


class JobsServiceServicer:
    def CreateJob(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def ActivateJobs(self, request, context):
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

    def UpdateJobRetries(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def UpdateJobTimeout(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def CancelJob(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def GetJob(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def ListJobs(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')

    def GetJobStats(self, request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        raise NotImplementedError('Method not implemented!')


def add_JobsServiceServicer_to_server(servicer, server):
    handlers = {
        'CreateJob': grpc.unary_unary_rpc_method_handler(
            servicer.CreateJob,
            request_deserializer=jobs_pb2.CreateJobRequest.FromString,
            response_serializer=jobs_pb2.CreateJobResponse.SerializeToString,
        ),
        'ActivateJobs': grpc.unary_stream_rpc_method_handler(
            servicer.ActivateJobs,
            request_deserializer=jobs_pb2.ActivateJobsRequest.FromString,
            response_serializer=jobs_pb2.ActivateJobsResponse.SerializeToString,
        ),
        'CompleteJob': grpc.unary_unary_rpc_method_handler(
            servicer.CompleteJob,
            request_deserializer=jobs_pb2.CompleteJobRequest.FromString,
            response_serializer=jobs_pb2.CompleteJobResponse.SerializeToString,
        ),
        'FailJob': grpc.unary_unary_rpc_method_handler(
            servicer.FailJob,
            request_deserializer=jobs_pb2.FailJobRequest.FromString,
            response_serializer=jobs_pb2.FailJobResponse.SerializeToString,
        ),
        'ThrowError': grpc.unary_unary_rpc_method_handler(
            servicer.ThrowError,
            request_deserializer=jobs_pb2.ThrowErrorRequest.FromString,
            response_serializer=jobs_pb2.ThrowErrorResponse.SerializeToString,
        ),
        'UpdateJobRetries': grpc.unary_unary_rpc_method_handler(
            servicer.UpdateJobRetries,
            request_deserializer=jobs_pb2.UpdateJobRetriesRequest.FromString,
            response_serializer=jobs_pb2.UpdateJobRetriesResponse.SerializeToString,
        ),
        'UpdateJobTimeout': grpc.unary_unary_rpc_method_handler(
            servicer.UpdateJobTimeout,
            request_deserializer=jobs_pb2.UpdateJobTimeoutRequest.FromString,
            response_serializer=jobs_pb2.UpdateJobTimeoutResponse.SerializeToString,
        ),
        'CancelJob': grpc.unary_unary_rpc_method_handler(
            servicer.CancelJob,
            request_deserializer=jobs_pb2.CancelJobRequest.FromString,
            response_serializer=jobs_pb2.CancelJobResponse.SerializeToString,
        ),
        'GetJob': grpc.unary_unary_rpc_method_handler(
            servicer.GetJob,
            request_deserializer=jobs_pb2.GetJobRequest.FromString,
            response_serializer=jobs_pb2.GetJobResponse.SerializeToString,
        ),
        'ListJobs': grpc.unary_unary_rpc_method_handler(
            servicer.ListJobs,
            request_deserializer=jobs_pb2.ListJobsRequest.FromString,
            response_serializer=jobs_pb2.ListJobsResponse.SerializeToString,
        ),
        'GetJobStats': grpc.unary_unary_rpc_method_handler(
            servicer.GetJobStats,
            request_deserializer=jobs_pb2.GetJobStatsRequest.FromString,
            response_serializer=jobs_pb2.GetJobStatsResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('atom.jobs.v1.JobsService', handlers),))
