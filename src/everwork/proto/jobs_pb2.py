"""Generated from proto/atom/jobs/v1/jobs.proto by tools/generate_proto.py. Do not edit."""

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

from everwork.proto.pool import add_file

DESCRIPTOR = add_file(
    'atom/jobs/v1/jobs.proto',
    b'\n\x17atom/jobs/v1/jobs.proto\x12\x0catom.jobs.v1"\x8a\x05\n\x10CreateJobRequest\x12\x10\n\x08job_type\x18\x01 \x01(\t\x12\x0f'
    b'\n\x07retries\x18\x02 \x01(\x05\x12@\n\tvariables\x18\x03 \x03(\x0b2-.atom.jobs.v1.CreateJobRequest.VariablesEntr'
    b'y\x12I\n\x0ecustom_headers\x18\x04 \x03(\x0b21.atom.jobs.v1.CreateJobRequest.CustomHeadersEntry\x12\x0f\n\x07'
    b'timeout\x18\x05 \x01(\x03\x12\x1c\n\x14process_instance_key\x18\x06 \x01(\t\x12\x12\n\nelement_id\x18\x07 \x01(\t\x12\x16\n\x0evariables_jso'
    b'n\x18\x15 \x01(\t\x12\x11\n\ttenant_id\x18\x16 \x01(\t\x12\x10\n\x08priority\x18\x17 \x01(\x05\x12\x10\n\x08delay_ms\x18\x18 \x01(\x03\x12\x12\n\ndedupe_key\x18\x19 \x01'
    b'(\t\x12\x16\n\x0ecorrelation_id\x18\x1a \x01(\t\x12\x12\n\nexpires_at\x18\x1b \x01(\t\x12\x11\n\tlimit_key\x18\x1c \x01(\t\x12\x17\n\x0fbpmn_proces'
    b's_id\x18\x1d \x01(\t\x12"\n\x1aprocess_definition_version\x18\x1e \x01(\t\x12\x1e\n\x16process_definition_key\x18\x1f \x01(\t\x12\x1c'
    b'\n\x14element_instance_key\x18  \x01(\t\x1a0\n\x0eVariablesEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\t:\x028\x01\x1a4'
    b'\n\x12CustomHeadersEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\t:\x028\x01"p\n\x11CreateJobResponse\x12\x0f\n\x07suc'
    b'cess\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t\x12\x0f\n\x07job_key\x18\x03 \x01(\t\x12\x12\n\ncreated_at\x18\x04 \x01(\t\x12\x14\n\x0cdeduplicated'
    b'\x18\x14 \x01(\x08"\x9d\x01\n\x13ActivateJobsRequest\x12\x0c\n\x04type\x18\x01 \x01(\t\x12\x0e\n\x06worker\x18\x02 \x01(\t\x12\x0f\n\x07timeout\x18\x03 \x01(\x05\x12\x1c\n'
    b'\x14max_jobs_to_activate\x18\x04 \x01(\x05\x12\x16\n\x0efetch_variable\x18\x05 \x03(\t\x12\x12\n\ntenant_ids\x18\x06 \x01(\t\x12\r\n\x05group'
    b'\x18\x14 \x01(\t"h\n\x14ActivateJobsResponse\x12(\n\x04jobs\x18\x01 \x03(\x0b2\x1a.atom.jobs.v1.ActivatedJob\x12\x0f\n\x07succ'
    b'ess\x18\x02 \x01(\x08\x12\x15\n\rerror_message\x18\x03 \x01(\t"\xc1\x03\n\x0cActivatedJob\x12\x0f\n\x07job_key\x18\x01 \x01(\t\x12\x0c\n\x04type\x18\x02 \x01(\t'
    b'\x12\x1c\n\x14process_instance_key\x18\x03 \x01(\t\x12\x17\n\x0fbpmn_process_id\x18\x04 \x01(\t\x12"\n\x1aprocess_definition_ve'
    b'rsion\x18\x05 \x01(\t\x12\x1e\n\x16process_definition_key\x18\x06 \x01(\t\x12\x12\n\nelement_id\x18\x07 \x01(\t\x12\x1c\n\x14element_insta'
    b'nce_key\x18\x08 \x01(\t\x12E\n\x0ecustom_headers\x18\t \x03(\x0b2-.atom.jobs.v1.ActivatedJob.CustomHeadersE'
    b'ntry\x12\x0e\n\x06worker\x18\n \x01(\t\x12\x0f\n\x07retries\x18\x0b \x01(\x05\x12\x10\n\x08deadline\x18\x0c \x01(\x03\x12\x11\n\tvariables\x18\r \x01(\t\x12\x11\n\tte'
    b'nant_id\x18\x0e \x01(\t\x12\x0f\n\x07attempt\x18\x14 \x01(\r\x1a4\n\x12CustomHeadersEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\t'
    b':\x028\x01"\xc4\x01\n\x12CompleteJobRequest\x12\x0f\n\x07job_key\x18\x01 \x01(\t\x12B\n\tvariables\x18\x02 \x03(\x0b2/.atom.jobs.v1.C'
    b'ompleteJobRequest.VariablesEntry\x12\x0f\n\x07attempt\x18\x14 \x01(\r\x12\x16\n\x0evariables_json\x18\x15 \x01(\t\x1a0\n\x0eVar'
    b'iablesEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\t:\x028\x01"7\n\x13CompleteJobResponse\x12\x0f\n\x07success\x18\x01 '
    b'\x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t"\xc1\x01\n\x0eFailJobRequest\x12\x0f\n\x07job_key\x18\x01 \x01(\t\x12\x0f\n\x07retries\x18\x02 \x01(\x05\x12\x15\n\rerr'
    b'or_message\x18\x03 \x01(\t\x12\x17\n\x0fbackoff_timeout\x18\x04 \x01(\x03\x12\x0f\n\x07attempt\x18\x14 \x01(\r\x12\x16\n\x0evariables_json\x18\x15 \x01'
    b'(\t\x12\x11\n\tby_policy\x18\x16 \x01(\x08\x12\x0e\n\x06strict\x18\x17 \x01(\x08\x12\x11\n\ttraceback\x18\x18 \x01(\t"3\n\x0fFailJobResponse\x12\x0f\n\x07s'
    b'uccess\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t"\x80\x02\n\x11ThrowErrorRequest\x12\x0f\n\x07job_key\x18\x01 \x01(\t\x12\x12\n\nerror_co'
    b'de\x18\x02 \x01(\t\x12\x15\n\rerror_message\x18\x03 \x01(\t\x12A\n\tvariables\x18\x04 \x03(\x0b2..atom.jobs.v1.ThrowErrorRequ'
    b'est.VariablesEntry\x12\x0f\n\x07attempt\x18\x14 \x01(\r\x12\x16\n\x0evariables_json\x18\x15 \x01(\t\x12\x11\n\ttraceback\x18\x16 \x01(\t\x1a0'
    b'\n\x0eVariablesEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\t:\x028\x01"L\n\x12ThrowErrorResponse\x12\x0f\n\x07succes'
    b's\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t\x12\x14\n\x0cerror_caught\x18\x03 \x01(\x08";\n\x17UpdateJobRetriesRequest\x12\x0f\n\x07job'
    b'_key\x18\x01 \x01(\t\x12\x0f\n\x07retries\x18\x02 \x01(\x05"V\n\x18UpdateJobRetriesResponse\x12\x0f\n\x07success\x18\x01 \x01(\x08\x12\x0f\n\x07mess'
    b'age\x18\x02 \x01(\t\x12\x18\n\x10previous_retries\x18\x03 \x01(\x05"L\n\x17UpdateJobTimeoutRequest\x12\x0f\n\x07job_key\x18\x01 \x01(\t\x12'
    b'\x0f\n\x07timeout\x18\x02 \x01(\x03\x12\x0f\n\x07attempt\x18\x14 \x01(\r"<\n\x18UpdateJobTimeoutResponse\x12\x0f\n\x07success\x18\x01 \x01(\x08\x12\x0f'
    b'\n\x07message\x18\x02 \x01(\t"3\n\x10CancelJobRequest\x12\x0f\n\x07job_key\x18\x01 \x01(\t\x12\x0e\n\x06reason\x18\x02 \x01(\t"M\n\x11CancelJo'
    b'bResponse\x12\x0f\n\x07success\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t\x12\x16\n\x0eprevious_state\x18\x03 \x01(\t" \n\rGetJobReq'
    b'uest\x12\x0f\n\x07job_key\x18\x01 \x01(\t"R\n\x0eGetJobResponse\x12\x0f\n\x07success\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t\x12\x1e\n\x03job'
    b'\x18\x03 \x01(\x0b2\x11.atom.jobs.v1.Job"\x99\x01\n\x0fListJobsRequest\x12\x10\n\x08job_type\x18\x01 \x01(\t\x12\r\n\x05state\x18\x02 \x01(\t\x12\x0e'
    b'\n\x06worker\x18\x03 \x01(\t\x12\r\n\x05limit\x18\x04 \x01(\x05\x12\x0e\n\x06offset\x18\x05 \x01(\x05\x12\x0f\n\x07sort_by\x18\x06 \x01(\t\x12\x11\n\tsort_desc\x18\x07 \x01('
    b'\x08\x12\x12\n\ntenant_ids\x18\x14 \x01(\t"v\n\x10ListJobsResponse\x12\x0f\n\x07success\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t\x12\x1f\n\x04j'
    b'obs\x18\x03 \x03(\x0b2\x11.atom.jobs.v1.Job\x12\r\n\x05total\x18\x04 \x01(\x05\x12\x10\n\x08has_more\x18\x05 \x01(\x08"\x8e\x07\n\x03Job\x12\x0f\n\x07job_key'
    b'\x18\x01 \x01(\t\x12\x10\n\x08job_type\x18\x02 \x01(\t\x12\r\n\x05state\x18\x03 \x01(\t\x12\x0e\n\x06worker\x18\x04 \x01(\t\x12\x0f\n\x07retries\x18\x05 \x01(\x05\x12\x12\n\ncrea'
    b'ted_at\x18\x06 \x01(\t\x12\x14\n\x0cactivated_at\x18\x07 \x01(\t\x12\x14\n\x0ccompleted_at\x18\x08 \x01(\t\x12\x10\n\x08deadline\x18\t \x01(\t\x12\x1c\n\x14pr'
    b'ocess_instance_key\x18\n \x01(\t\x12\x12\n\nelement_id\x18\x0b \x01(\t\x123\n\tvariables\x18\x0c \x03(\x0b2 .atom.jobs.v1.J'
    b'ob.VariablesEntry\x12<\n\x0ecustom_headers\x18\r \x03(\x0b2$.atom.jobs.v1.Job.CustomHeadersEntry\x12'
    b'\x15\n\rerror_message\x18\x0e \x01(\t\x12\x0f\n\x07timeout\x18\x0f \x01(\x03\x12\x0f\n\x07attempt\x18\x14 \x01(\r\x12\x16\n\x0evariables_json\x18\x15 \x01(\t'
    b'\x12\x11\n\ttenant_id\x18\x16 \x01(\t\x12\x10\n\x08priority\x18\x17 \x01(\x05\x12\x0e\n\x06run_at\x18\x18 \x01(\t\x12\x12\n\ndedupe_key\x18\x19 \x01(\t\x12\x16\n\x0ecor'
    b'relation_id\x18\x1a \x01(\t\x12\x12\n\nexpires_at\x18\x1b \x01(\t\x12\x11\n\tlimit_key\x18\x1c \x01(\t\x12\x17\n\x0fbpmn_process_id\x18\x1d \x01('
    b'\t\x12"\n\x1aprocess_definition_version\x18\x1e \x01(\t\x12\x1e\n\x16process_definition_key\x18\x1f \x01(\t\x12\x1c\n\x14element'
    b'_instance_key\x18  \x01(\t\x12\r\n\x05group\x18! \x01(\t\x12\x10\n\x08attempts\x18" \x01(\r\x12\x14\n\x0cmax_attempts\x18# \x01(\r\x12\x13\n\x0bre'
    b"sult_json\x18$ \x01(\t\x12\x12\n\nerror_code\x18% \x01(\t\x12\x10\n\x08rejected\x18& \x01(\x08\x12\x0f\n\x07copy_of\x18' \x01(\t\x1a0\n\x0eVariab"
    b'lesEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\t:\x028\x01\x1a4\n\x12CustomHeadersEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05v'
    b'alue\x18\x02 \x01(\t:\x028\x01"J\n\x12GetJobStatsRequest\x12\x10\n\x08job_type\x18\x01 \x01(\t\x12\x0e\n\x06worker\x18\x02 \x01(\t\x12\x12\n\ntime_r'
    b'ange\x18\x03 \x01(\t"^\n\x13GetJobStatsResponse\x12\x0f\n\x07success\x18\x01 \x01(\x08\x12\x0f\n\x07message\x18\x02 \x01(\t\x12%\n\x05stats\x18\x03 \x01'
    b'(\x0b2\x16.atom.jobs.v1.JobStats"\x9e\x03\n\x08JobStats\x12\x12\n\ntotal_jobs\x18\x01 \x01(\x05\x125\n\x08by_state\x18\x02 \x03(\x0b2#.'
    b'atom.jobs.v1.JobStats.ByStateEntry\x123\n\x07by_type\x18\x03 \x03(\x0b2".atom.jobs.v1.JobStats.ByTy'
    b'peEntry\x127\n\tby_worker\x18\x04 \x03(\x0b2$.atom.jobs.v1.JobStats.ByWorkerEntry\x123\n\x0bperformance\x18'
    b'\x05 \x01(\x0b2\x1e.atom.jobs.v1.PerformanceStats\x12\x14\n\x0cgenerated_at\x18\x06 \x01(\t\x1a.\n\x0cByStateEntry\x12\x0b\n\x03k'
    b'ey\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\x05:\x028\x01\x1a-\n\x0bByTypeEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\x05:\x028\x01\x1a/\n\rBy'
    b'WorkerEntry\x12\x0b\n\x03key\x18\x01 \x01(\t\x12\r\n\x05value\x18\x02 \x01(\x05:\x028\x01"\xbb\x01\n\x10PerformanceStats\x12\x1a\n\x12avg_executio'
    b'n_time\x18\x01 \x01(\x01\x12\x15\n\ravg_wait_time\x18\x02 \x01(\x01\x12\x17\n\x0fsuccessful_jobs\x18\x03 \x01(\x05\x12\x13\n\x0bfailed_jobs\x18\x04 \x01('
    b'\x05\x12\x14\n\x0csuccess_rate\x18\x05 \x01(\x01\x12\x13\n\x0bretry_count\x18\x06 \x01(\x05\x12\x1b\n\x13avg_retries_per_job\x18\x07 \x01(\x012\x99\x07\n\x0bJo'
    b'bsService\x12L\n\tCreateJob\x12\x1e.atom.jobs.v1.CreateJobRequest\x1a\x1f.atom.jobs.v1.CreateJobR'
    b'esponse\x12W\n\x0cActivateJobs\x12!.atom.jobs.v1.ActivateJobsRequest\x1a".atom.jobs.v1.Activa'
    b'teJobsResponse0\x01\x12R\n\x0bCompleteJob\x12 .atom.jobs.v1.CompleteJobRequest\x1a!.atom.jobs.v1'
    b'.CompleteJobResponse\x12F\n\x07FailJob\x12\x1c.atom.jobs.v1.FailJobRequest\x1a\x1d.atom.jobs.v1.Fai'
    b'lJobResponse\x12O\n\nThrowError\x12\x1f.atom.jobs.v1.ThrowErrorRequest\x1a .atom.jobs.v1.Throw'
    b'ErrorResponse\x12a\n\x10UpdateJobRetries\x12%.atom.jobs.v1.UpdateJobRetriesRequest\x1a&.atom.'
    b'jobs.v1.UpdateJobRetriesResponse\x12a\n\x10UpdateJobTimeout\x12%.atom.jobs.v1.UpdateJobTim'
    b'eoutRequest\x1a&.atom.jobs.v1.UpdateJobTimeoutResponse\x12L\n\tCancelJob\x12\x1e.atom.jobs.v1.'
    b'CancelJobRequest\x1a\x1f.atom.jobs.v1.CancelJobResponse\x12C\n\x06GetJob\x12\x1b.atom.jobs.v1.GetJo'
    b'bRequest\x1a\x1c.atom.jobs.v1.GetJobResponse\x12I\n\x08ListJobs\x12\x1d.atom.jobs.v1.ListJobsReques'
    b't\x1a\x1e.atom.jobs.v1.ListJobsResponse\x12R\n\x0bGetJobStats\x12 .atom.jobs.v1.GetJobStatsReque'
    b'st\x1a!.atom.jobs.v1.GetJobStatsResponseB\x1fZ\x1datom-engine/proto/jobs/jobspbb\x06proto3'
)
_messages = DESCRIPTOR.message_types_by_name
CreateJobRequest = GetMessageClass(_messages['CreateJobRequest'])
CreateJobResponse = GetMessageClass(_messages['CreateJobResponse'])
ActivateJobsRequest = GetMessageClass(_messages['ActivateJobsRequest'])
ActivateJobsResponse = GetMessageClass(_messages['ActivateJobsResponse'])
ActivatedJob = GetMessageClass(_messages['ActivatedJob'])
CompleteJobRequest = GetMessageClass(_messages['CompleteJobRequest'])
CompleteJobResponse = GetMessageClass(_messages['CompleteJobResponse'])
FailJobRequest = GetMessageClass(_messages['FailJobRequest'])
FailJobResponse = GetMessageClass(_messages['FailJobResponse'])
ThrowErrorRequest = GetMessageClass(_messages['ThrowErrorRequest'])
ThrowErrorResponse = GetMessageClass(_messages['ThrowErrorResponse'])
UpdateJobRetriesRequest = GetMessageClass(_messages['UpdateJobRetriesRequest'])
UpdateJobRetriesResponse = GetMessageClass(_messages['UpdateJobRetriesResponse'])
UpdateJobTimeoutRequest = GetMessageClass(_messages['UpdateJobTimeoutRequest'])
UpdateJobTimeoutResponse = GetMessageClass(_messages['UpdateJobTimeoutResponse'])
CancelJobRequest = GetMessageClass(_messages['CancelJobRequest'])
CancelJobResponse = GetMessageClass(_messages['CancelJobResponse'])
GetJobRequest = GetMessageClass(_messages['GetJobRequest'])
GetJobResponse = GetMessageClass(_messages['GetJobResponse'])
ListJobsRequest = GetMessageClass(_messages['ListJobsRequest'])
ListJobsResponse = GetMessageClass(_messages['ListJobsResponse'])
Job = GetMessageClass(_messages['Job'])
GetJobStatsRequest = GetMessageClass(_messages['GetJobStatsRequest'])
GetJobStatsResponse = GetMessageClass(_messages['GetJobStatsResponse'])
JobStats = GetMessageClass(_messages['JobStats'])
PerformanceStats = GetMessageClass(_messages['PerformanceStats'])
