"""Generated from proto/everwork/v1/work.proto by tools/generate_proto.py. Do not edit."""

# ruff: noqa: D101, D102, D103, E501, I001, N802
# fmt: off

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

from everwork.proto.pool import add_file

DESCRIPTOR = add_file(
    'everwork/v1/work.proto',
    b'\n\x16everwork/v1/work.proto\x12\x0beverwork.v1"\xb5\x01\n\nFromWorker\x12!\n\x05hello\x18\x01 \x01(\x0b2\x12.everwork.v'
    b'1.Hello\x12"\n\x06grants\x18\x02 \x03(\x0b2\x12.everwork.v1.Grant\x12&\n\x08outcomes\x18\x03 \x03(\x0b2\x14.everwork.v1.Outc'
    b'ome\x12&\n\nheartbeats\x18\x04 \x03(\x0b2\x12.everwork.v1.Lease\x12\x10\n\x08draining\x18\x05 \x01(\x08"N\n\x05Hello\x12\x0e\n\x06worker'
    b'\x18\x01 \x01(\t\x12\x10\n\x08lease_ms\x18\x02 \x01(\x03\x12#\n\x07resumed\x18\x03 \x03(\x0b2\x12.everwork.v1.Lease"F\n\x05Grant\x12\x0c\n\x04type\x18\x01'
    b' \x01(\t\x12\x0f\n\x07credits\x18\x02 \x01(\r\x12\r\n\x05group\x18\x03 \x01(\t\x12\x0f\n\x07tenants\x18\x04 \x03(\t"%\n\x05Lease\x12\x0b\n\x03key\x18\x01 \x01(\x04\x12\x0f\n\x07a'
    b'ttempt\x18\x02 \x01(\r"\x97\x02\n\x07Outcome\x12\x0b\n\x03key\x18\x01 \x01(\x04\x12\x0f\n\x07attempt\x18\x02 \x01(\r\x12)\n\x08complete\x18\x03 \x01(\x0b2\x15.everw'
    b'ork.v1.CompleteH\x00\x12!\n\x04fail\x18\x04 \x01(\x0b2\x11.everwork.v1.FailH\x00\x12#\n\x05retry\x18\x05 \x01(\x0b2\x12.everwork.v'
    b"1.RetryH\x00\x12%\n\x06reject\x18\x06 \x01(\x0b2\x13.everwork.v1.RejectH\x00\x12'\n\x07release\x18\x07 \x01(\x0b2\x14.everwork.v1."
    b'ReleaseH\x00\x12#\n\x05throw\x18\x08 \x01(\x0b2\x12.everwork.v1.ThrowH\x00B\x06\n\x04kind"?\n\x08Complete\x12\x0e\n\x06result\x18\x01 \x01'
    b'(\x0c\x12#\n\x06events\x18\x02 \x03(\x0b2\x13.everwork.v1.NewJob"\x81\x01\n\x04Fail\x12\r\n\x05error\x18\x01 \x01(\t\x12\x14\n\x07retries\x18\x02 \x01(\r'
    b'H\x00\x88\x01\x01\x12\x17\n\nbackoff_ms\x18\x03 \x01(\x04H\x01\x88\x01\x01\x12\r\n\x05final\x18\x04 \x01(\x08\x12\x11\n\tvariables\x18\x05 \x01(\x0cB\n\n\x08_retriesB\r\n\x0b'
    b'_backoff_ms":\n\x05Retry\x12\r\n\x05error\x18\x01 \x01(\t\x12\x15\n\x08delay_ms\x18\x02 \x01(\x04H\x00\x88\x01\x01B\x0b\n\t_delay_ms"\x17\n\x06Rejec'
    b't\x12\r\n\x05error\x18\x01 \x01(\t"\t\n\x07Release"7\n\x05Throw\x12\x0c\n\x04code\x18\x01 \x01(\t\x12\r\n\x05error\x18\x02 \x01(\t\x12\x11\n\tvariables\x18\x03'
    b' \x01(\x0c"\xbe\x01\n\x08ToWorker\x12%\n\x07welcome\x18\x01 \x01(\x0b2\x14.everwork.v1.Welcome\x12\x1e\n\x04jobs\x18\x02 \x03(\x0b2\x10.everwor'
    b'k.v1.Job\x12\x0f\n\x07settled\x18\x03 \x01(\x04\x12&\n\x08refusals\x18\x04 \x03(\x0b2\x14.everwork.v1.Refusal\x12!\n\x06losses\x18\x05 \x03('
    b'\x0b2\x11.everwork.v1.Loss\x12\x0f\n\x07closing\x18\x06 \x01(\x08"P\n\x07Welcome\x12\x0e\n\x06server\x18\x01 \x01(\t\x12\x14\n\x0cheartbeat_ms'
    b'\x18\x02 \x01(\x03\x12\x1f\n\x04lost\x18\x03 \x03(\x0b2\x11.everwork.v1.Loss"\xd2\x02\n\x03Job\x12\x0b\n\x03key\x18\x01 \x01(\x04\x12\x0f\n\x07attempt\x18\x02 \x01(\r\x12\x0c\n'
    b'\x04type\x18\x03 \x01(\t\x12\r\n\x05group\x18\x04 \x01(\t\x12\x0e\n\x06tenant\x18\x05 \x01(\t\x12\x11\n\tvariables\x18\x06 \x01(\x0c\x12\x0f\n\x07headers\x18\x07 \x01(\x0c\x12\x10'
    b'\n\x08attempts\x18\x08 \x01(\r\x12\x14\n\x0cmax_attempts\x18\t \x01(\r\x12\x16\n\x0elease_until_ms\x18\n \x01(\x03\x12\x11\n\trun_at_ms\x18\x0b \x01('
    b'\x03\x12\x15\n\rcreated_at_ms\x18\x0c \x01(\x03\x12\x10\n\x08priority\x18\r \x01(\x05\x12\x17\n\ntimeout_ms\x18\x0e \x01(\x03H\x00\x88\x01\x01\x12\x16\n\x0ecorrelati'
    b'on_id\x18\x0f \x01(\t\x12\x11\n\tlimit_key\x18\x10 \x01(\t\x12\r\n\x05extra\x18\x11 \x01(\x0cB\r\n\x0b_timeout_ms"\x81\x01\n\x07Refusal\x12\x0e\n\x06numb'
    b'er\x18\x01 \x01(\x04\x12!\n\x05lease\x18\x02 \x01(\x0b2\x12.everwork.v1.Lease\x12#\n\x06reason\x18\x03 \x01(\x0e2\x13.everwork.v1.Reason'
    b'\x12\r\n\x05state\x18\x04 \x01(\t\x12\x0f\n\x07message\x18\x05 \x01(\t"<\n\x04Loss\x12!\n\x05lease\x18\x01 \x01(\x0b2\x12.everwork.v1.Lease\x12\x11\n\tc'
    b'ancelled\x18\x02 \x01(\x08"\xdd\x02\n\x06NewJob\x12\x0c\n\x04type\x18\x01 \x01(\t\x12\x11\n\tvariables\x18\x02 \x01(\x0c\x12\x0e\n\x06tenant\x18\x03 \x01(\t\x12\x10\n\x08pr'
    b'iority\x18\x04 \x01(\x05\x12\x10\n\x08delay_ms\x18\x05 \x01(\x03\x12\x16\n\trun_at_ms\x18\x06 \x01(\x03H\x00\x88\x01\x01\x12\x14\n\x0cmax_attempts\x18\x07 \x01(\r\x12\x12\n\n'
    b'dedupe_key\x18\x08 \x01(\t\x12\x11\n\tlimit_key\x18\t \x01(\t\x12\x16\n\x0ecorrelation_id\x18\n \x01(\t\x12\x1a\n\rexpires_at_ms\x18\x0b \x01'
    b'(\x03H\x01\x88\x01\x01\x12\x17\n\ntimeout_ms\x18\x0c \x01(\x03H\x02\x88\x01\x01\x12\x0f\n\x07headers\x18\r \x01(\x0c\x12\r\n\x05retry\x18\x0e \x01(\x0c\x12\r\n\x05extra\x18\x0f \x01(\x0cB'
    b'\x0c\n\n_run_at_msB\x10\n\x0e_expires_at_msB\r\n\x0b_timeout_ms"6\n\x11CreateJobsRequest\x12!\n\x04jobs\x18\x01 \x03('
    b'\x0b2\x13.everwork.v1.NewJob";\n\x12CreateJobsResponse\x12%\n\x04jobs\x18\x01 \x03(\x0b2\x17.everwork.v1.Created'
    b'Job"/\n\nCreatedJob\x12\x0b\n\x03key\x18\x01 \x01(\x04\x12\x14\n\x0cdeduplicated\x18\x02 \x01(\x08*t\n\x06Reason\x12\x16\n\x12REASON_UNSPECI'
    b'FIED\x10\x00\x12\r\n\tNOT_FOUND\x10\x01\x12\x0f\n\x0bWRONG_STATE\x10\x02\x12\x0e\n\nLEASE_LOST\x10\x03\x12\x15\n\x11PERMISSION_DENIED\x10\x04\x12\x0b\n'
    b'\x07INVALID\x10\x052\x98\x01\n\x0bWorkService\x12:\n\x04Work\x12\x17.everwork.v1.FromWorker\x1a\x15.everwork.v1.ToWork'
    b'er(\x010\x01\x12M\n\nCreateJobs\x12\x1e.everwork.v1.CreateJobsRequest\x1a\x1f.everwork.v1.CreateJobsRes'
    b'ponseB\x1bZ\x19everwork/proto/everworkpbb\x06proto3'
)
_messages = DESCRIPTOR.message_types_by_name
FromWorker = GetMessageClass(_messages['FromWorker'])
Hello = GetMessageClass(_messages['Hello'])
Grant = GetMessageClass(_messages['Grant'])
Lease = GetMessageClass(_messages['Lease'])
Outcome = GetMessageClass(_messages['Outcome'])
Complete = GetMessageClass(_messages['Complete'])
Fail = GetMessageClass(_messages['Fail'])
Retry = GetMessageClass(_messages['Retry'])
Reject = GetMessageClass(_messages['Reject'])
Release = GetMessageClass(_messages['Release'])
Throw = GetMessageClass(_messages['Throw'])
ToWorker = GetMessageClass(_messages['ToWorker'])
Welcome = GetMessageClass(_messages['Welcome'])
Job = GetMessageClass(_messages['Job'])
Refusal = GetMessageClass(_messages['Refusal'])
Loss = GetMessageClass(_messages['Loss'])
NewJob = GetMessageClass(_messages['NewJob'])
CreateJobsRequest = GetMessageClass(_messages['CreateJobsRequest'])
CreateJobsResponse = GetMessageClass(_messages['CreateJobsResponse'])
CreatedJob = GetMessageClass(_messages['CreatedJob'])
Reason = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name['Reason'])
REASON_UNSPECIFIED = 0
NOT_FOUND = 1
WRONG_STATE = 2
LEASE_LOST = 3
PERMISSION_DENIED = 4
INVALID = 5
