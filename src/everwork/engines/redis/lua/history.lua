-- Purpose: how the attempts of a job ended.
-- Inputs: now; id. Returns: state (false: no such job), last error or false, written entries.
-- Parts: records
local id = ARGV[2]
return {call('HGET', S .. sub(id, 1, 13), id), call('HGET', E .. sub(id, 1, 13), id), call('LRANGE', P .. ':h:' .. id, 0, -1)}
