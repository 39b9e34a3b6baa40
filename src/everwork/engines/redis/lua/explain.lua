-- Purpose: why a job is not running.
-- Inputs: now; id. Returns: nothing for no such job; else now, state, paused, breaker open until, asked at, jobs ahead, lease end ('' for none).
-- Parts: records effects places
local record, tail = state_of(ARGV[2])
if not record then return false end
local r = parse(tail)
local group = string.match(r.queue, '\31(.*)$') or ''
local got = call('HMGET', P .. ':t:' .. type_of(r.queue), 'paused', 'breaker', 'asked\n' .. group)
local ahead = r.state == 'p' and call('ZRANK', ready_key(r.queue, r.lane), ARGV[2]) or 0
return {NOW, record, got[1] or '', got[2] or '', got[3] or '', ahead, r.state == 'r' and call('ZSCORE', LEASES, ARGV[2]) or ''}
