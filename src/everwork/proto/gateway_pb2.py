"""Generated from proto/zeebe/gateway.proto by tools/generate_proto.py. Do not edit."""

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

from everwork.proto.pool import add_file

DESCRIPTOR = add_file(
    'zeebe/gateway.proto',
    b'\n\x13zeebe/gateway.proto\x12\x10gateway_protocol"u\n\x1aStreamActivatedJobsRequest\x12\x0c\n\x04type\x18\x01 '
    b'\x01(\t\x12\x0e\n\x06worker\x18\x02 \x01(\t\x12\x0f\n\x07timeout\x18\x03 \x01(\x03\x12\x15\n\rfetchVariable\x18\x05 \x03(\t\x12\x11\n\ttenantIds\x18\x06 \x03(\t"\xa1'
    b'\x01\n\x13ActivateJobsRequest\x12\x0c\n\x04type\x18\x01 \x01(\t\x12\x0e\n\x06worker\x18\x02 \x01(\t\x12\x0f\n\x07timeout\x18\x03 \x01(\x03\x12\x19\n\x11maxJobs'
    b'ToActivate\x18\x04 \x01(\x05\x12\x15\n\rfetchVariable\x18\x05 \x03(\t\x12\x16\n\x0erequestTimeout\x18\x06 \x01(\x03\x12\x11\n\ttenantIds\x18\x07 \x03'
    b'(\t"D\n\x14ActivateJobsResponse\x12,\n\x04jobs\x18\x01 \x03(\x0b2\x1e.gateway_protocol.ActivatedJob"\xba\x02\n\x0cAct'
    b'ivatedJob\x12\x0b\n\x03key\x18\x01 \x01(\x03\x12\x0c\n\x04type\x18\x02 \x01(\t\x12\x1a\n\x12processInstanceKey\x18\x03 \x01(\x03\x12\x15\n\rbpmnProcessI'
    b'd\x18\x04 \x01(\t\x12 \n\x18processDefinitionVersion\x18\x05 \x01(\x05\x12\x1c\n\x14processDefinitionKey\x18\x06 \x01(\x03\x12\x11\n\teleme'
    b'ntId\x18\x07 \x01(\t\x12\x1a\n\x12elementInstanceKey\x18\x08 \x01(\x03\x12\x15\n\rcustomHeaders\x18\t \x01(\t\x12\x0e\n\x06worker\x18\n \x01(\t\x12\x0f\n'
    b'\x07retries\x18\x0b \x01(\x05\x12\x10\n\x08deadline\x18\x0c \x01(\x03\x12\x11\n\tvariables\x18\r \x01(\t\x12\x10\n\x08tenantId\x18\x0e \x01(\t"7\n\x12Complet'
    b'eJobRequest\x12\x0e\n\x06jobKey\x18\x01 \x01(\x03\x12\x11\n\tvariables\x18\x02 \x01(\t"\x15\n\x13CompleteJobResponse"p\n\x0eFailJob'
    b'Request\x12\x0e\n\x06jobKey\x18\x01 \x01(\x03\x12\x0f\n\x07retries\x18\x02 \x01(\x05\x12\x14\n\x0cerrorMessage\x18\x03 \x01(\t\x12\x14\n\x0cretryBackOff\x18\x04'
    b' \x01(\x03\x12\x11\n\tvariables\x18\x05 \x01(\t"\x11\n\x0fFailJobResponse"_\n\x11ThrowErrorRequest\x12\x0e\n\x06jobKey\x18\x01 \x01(\x03\x12'
    b'\x11\n\terrorCode\x18\x02 \x01(\t\x12\x14\n\x0cerrorMessage\x18\x03 \x01(\t\x12\x11\n\tvariables\x18\x04 \x01(\t"\x14\n\x12ThrowErrorRespons'
    b'e"\x11\n\x0fTopologyRequest"\xa2\x01\n\x10TopologyResponse\x12-\n\x07brokers\x18\x01 \x03(\x0b2\x1c.gateway_protocol.Br'
    b'okerInfo\x12\x13\n\x0bclusterSize\x18\x02 \x01(\x05\x12\x17\n\x0fpartitionsCount\x18\x03 \x01(\x05\x12\x19\n\x11replicationFactor\x18\x04 \x01('
    b'\x05\x12\x16\n\x0egatewayVersion\x18\x05 \x01(\t"z\n\nBrokerInfo\x12\x0e\n\x06nodeId\x18\x01 \x01(\x05\x12\x0c\n\x04host\x18\x02 \x01(\t\x12\x0c\n\x04port\x18\x03 '
    b'\x01(\x05\x12/\n\npartitions\x18\x04 \x03(\x0b2\x1b.gateway_protocol.Partition\x12\x0f\n\x07version\x18\x05 \x01(\t"\xa0\x02\n\tPartit'
    b'ion\x12\x13\n\x0bpartitionId\x18\x01 \x01(\x05\x12=\n\x04role\x18\x02 \x01(\x0e2/.gateway_protocol.Partition.PartitionBro'
    b'kerRole\x12A\n\x06health\x18\x03 \x01(\x0e21.gateway_protocol.Partition.PartitionBrokerHealth"=\n\x13Pa'
    b'rtitionBrokerRole\x12\n\n\x06LEADER\x10\x00\x12\x0c\n\x08FOLLOWER\x10\x01\x12\x0c\n\x08INACTIVE\x10\x02"=\n\x15PartitionBrokerHeal'
    b'th\x12\x0b\n\x07HEALTHY\x10\x00\x12\r\n\tUNHEALTHY\x10\x01\x12\x08\n\x04DEAD\x10\x02"r\n\x17UpdateJobRetriesRequest\x12\x0e\n\x06jobKey\x18\x01 '
    b'\x01(\x03\x12\x0f\n\x07retries\x18\x02 \x01(\x05\x12\x1f\n\x12operationReference\x18\x03 \x01(\x04H\x00\x88\x01\x01B\x15\n\x13_operationReference"\x1a\n\x18'
    b'UpdateJobRetriesResponse"r\n\x17UpdateJobTimeoutRequest\x12\x0e\n\x06jobKey\x18\x01 \x01(\x03\x12\x0f\n\x07timeout\x18\x02'
    b' \x01(\x03\x12\x1f\n\x12operationReference\x18\x03 \x01(\x04H\x00\x88\x01\x01B\x15\n\x13_operationReference"\x1a\n\x18UpdateJobTimeout'
    b'Response2\xff\x05\n\x07Gateway\x12_\n\x0cActivateJobs\x12%.gateway_protocol.ActivateJobsRequest\x1a&.ga'
    b'teway_protocol.ActivateJobsResponse0\x01\x12e\n\x13StreamActivatedJobs\x12,.gateway_protocol.'
    b'StreamActivatedJobsRequest\x1a\x1e.gateway_protocol.ActivatedJob0\x01\x12Z\n\x0bCompleteJob\x12$.ga'
    b'teway_protocol.CompleteJobRequest\x1a%.gateway_protocol.CompleteJobResponse\x12N\n\x07Fail'
    b'Job\x12 .gateway_protocol.FailJobRequest\x1a!.gateway_protocol.FailJobResponse\x12W\n\nThro'
    b'wError\x12#.gateway_protocol.ThrowErrorRequest\x1a$.gateway_protocol.ThrowErrorRespons'
    b'e\x12Q\n\x08Topology\x12!.gateway_protocol.TopologyRequest\x1a".gateway_protocol.TopologyResp'
    b'onse\x12i\n\x10UpdateJobRetries\x12).gateway_protocol.UpdateJobRetriesRequest\x1a*.gateway_pr'
    b'otocol.UpdateJobRetriesResponse\x12i\n\x10UpdateJobTimeout\x12).gateway_protocol.UpdateJob'
    b'TimeoutRequest\x1a*.gateway_protocol.UpdateJobTimeoutResponseB\x1aZ\x18everwork/proto/gat'
    b'ewaypbb\x06proto3'
)
_messages = DESCRIPTOR.message_types_by_name
StreamActivatedJobsRequest = GetMessageClass(_messages['StreamActivatedJobsRequest'])
ActivateJobsRequest = GetMessageClass(_messages['ActivateJobsRequest'])
ActivateJobsResponse = GetMessageClass(_messages['ActivateJobsResponse'])
ActivatedJob = GetMessageClass(_messages['ActivatedJob'])
CompleteJobRequest = GetMessageClass(_messages['CompleteJobRequest'])
CompleteJobResponse = GetMessageClass(_messages['CompleteJobResponse'])
FailJobRequest = GetMessageClass(_messages['FailJobRequest'])
FailJobResponse = GetMessageClass(_messages['FailJobResponse'])
ThrowErrorRequest = GetMessageClass(_messages['ThrowErrorRequest'])
ThrowErrorResponse = GetMessageClass(_messages['ThrowErrorResponse'])
TopologyRequest = GetMessageClass(_messages['TopologyRequest'])
TopologyResponse = GetMessageClass(_messages['TopologyResponse'])
BrokerInfo = GetMessageClass(_messages['BrokerInfo'])
Partition = GetMessageClass(_messages['Partition'])
UpdateJobRetriesRequest = GetMessageClass(_messages['UpdateJobRetriesRequest'])
UpdateJobRetriesResponse = GetMessageClass(_messages['UpdateJobRetriesResponse'])
UpdateJobTimeoutRequest = GetMessageClass(_messages['UpdateJobTimeoutRequest'])
UpdateJobTimeoutResponse = GetMessageClass(_messages['UpdateJobTimeoutResponse'])
