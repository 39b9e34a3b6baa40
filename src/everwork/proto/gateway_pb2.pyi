"""Generated from proto/zeebe/gateway.proto by tools/generate_proto.py. Do not edit."""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import ClassVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.internal import containers
from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper
from google.protobuf.message import Message

DESCRIPTOR: FileDescriptor

class StreamActivatedJobsRequest(Message):
    type: str
    worker: str
    timeout: int
    fetchVariable: containers.RepeatedScalarFieldContainer[str]
    tenantIds: containers.RepeatedScalarFieldContainer[str]
    def __init__(self, *, type: str | None = ..., worker: str | None = ..., timeout: int | None = ..., fetchVariable: Iterable[str] | None = ..., tenantIds: Iterable[str] | None = ...) -> None: ...

class ActivateJobsRequest(Message):
    type: str
    worker: str
    timeout: int
    maxJobsToActivate: int
    fetchVariable: containers.RepeatedScalarFieldContainer[str]
    requestTimeout: int
    tenantIds: containers.RepeatedScalarFieldContainer[str]
    def __init__(self, *, type: str | None = ..., worker: str | None = ..., timeout: int | None = ..., maxJobsToActivate: int | None = ..., fetchVariable: Iterable[str] | None = ..., requestTimeout: int | None = ..., tenantIds: Iterable[str] | None = ...) -> None: ...

class ActivateJobsResponse(Message):
    jobs: containers.RepeatedCompositeFieldContainer[ActivatedJob]
    def __init__(self, *, jobs: Iterable[ActivatedJob] | None = ...) -> None: ...

class ActivatedJob(Message):
    key: int
    type: str
    processInstanceKey: int
    bpmnProcessId: str
    processDefinitionVersion: int
    processDefinitionKey: int
    elementId: str
    elementInstanceKey: int
    customHeaders: str
    worker: str
    retries: int
    deadline: int
    variables: str
    tenantId: str
    def __init__(self, *, key: int | None = ..., type: str | None = ..., processInstanceKey: int | None = ..., bpmnProcessId: str | None = ..., processDefinitionVersion: int | None = ..., processDefinitionKey: int | None = ..., elementId: str | None = ..., elementInstanceKey: int | None = ..., customHeaders: str | None = ..., worker: str | None = ..., retries: int | None = ..., deadline: int | None = ..., variables: str | None = ..., tenantId: str | None = ...) -> None: ...

class CompleteJobRequest(Message):
    jobKey: int
    variables: str
    def __init__(self, *, jobKey: int | None = ..., variables: str | None = ...) -> None: ...

class CompleteJobResponse(Message):
    def __init__(self) -> None: ...

class FailJobRequest(Message):
    jobKey: int
    retries: int
    errorMessage: str
    retryBackOff: int
    variables: str
    def __init__(self, *, jobKey: int | None = ..., retries: int | None = ..., errorMessage: str | None = ..., retryBackOff: int | None = ..., variables: str | None = ...) -> None: ...

class FailJobResponse(Message):
    def __init__(self) -> None: ...

class ThrowErrorRequest(Message):
    jobKey: int
    errorCode: str
    errorMessage: str
    variables: str
    def __init__(self, *, jobKey: int | None = ..., errorCode: str | None = ..., errorMessage: str | None = ..., variables: str | None = ...) -> None: ...

class ThrowErrorResponse(Message):
    def __init__(self) -> None: ...

class TopologyRequest(Message):
    def __init__(self) -> None: ...

class TopologyResponse(Message):
    brokers: containers.RepeatedCompositeFieldContainer[BrokerInfo]
    clusterSize: int
    partitionsCount: int
    replicationFactor: int
    gatewayVersion: str
    def __init__(self, *, brokers: Iterable[BrokerInfo] | None = ..., clusterSize: int | None = ..., partitionsCount: int | None = ..., replicationFactor: int | None = ..., gatewayVersion: str | None = ...) -> None: ...

class BrokerInfo(Message):
    nodeId: int
    host: str
    port: int
    partitions: containers.RepeatedCompositeFieldContainer[Partition]
    version: str
    def __init__(self, *, nodeId: int | None = ..., host: str | None = ..., port: int | None = ..., partitions: Iterable[Partition] | None = ..., version: str | None = ...) -> None: ...

class Partition(Message):
    PartitionBrokerRole: ClassVar[_EnumTypeWrapper[int]]
    LEADER: ClassVar[int]
    FOLLOWER: ClassVar[int]
    INACTIVE: ClassVar[int]
    PartitionBrokerHealth: ClassVar[_EnumTypeWrapper[int]]
    HEALTHY: ClassVar[int]
    UNHEALTHY: ClassVar[int]
    DEAD: ClassVar[int]
    partitionId: int
    role: int
    health: int
    def __init__(self, *, partitionId: int | None = ..., role: int | None = ..., health: int | None = ...) -> None: ...

class UpdateJobRetriesRequest(Message):
    jobKey: int
    retries: int
    operationReference: int
    def __init__(self, *, jobKey: int | None = ..., retries: int | None = ..., operationReference: int | None = ...) -> None: ...

class UpdateJobRetriesResponse(Message):
    def __init__(self) -> None: ...

class UpdateJobTimeoutRequest(Message):
    jobKey: int
    timeout: int
    operationReference: int
    def __init__(self, *, jobKey: int | None = ..., timeout: int | None = ..., operationReference: int | None = ...) -> None: ...

class UpdateJobTimeoutResponse(Message):
    def __init__(self) -> None: ...
