-- Purpose: read the history of a job: how its attempts ended.
-- Inputs: now; id. Returns: state (false: the job does not exist), last error or false, stored entries.
-- Parts: prelude records
local id = ARGV[2]
local bucket = sub(id, 1, 13)
return {call('HGET', STATES .. bucket, id), call('HGET', ERRORS .. bucket, id), call('LRANGE', P .. ':h:' .. id, 0, -1)}
