-- Purpose: explain why a job is not running.
-- Inputs: now; id.
-- Returns: nothing if the job does not exist; otherwise now, its state, the fields of its type (flat), 1 if a probe
--   is running, the number of running jobs in its queue and in its lane (0 if there is no limit), the number of jobs
--   ahead of it, and the end of its lease ('' for none).
-- Parts: prelude records traits running effects queues
local record, tail = state_of(ARGV[2])
if not record then return false end
local r = parse(tail)
local t = trait_for(r.queue)
local ahead = r.state == 'p' and call('ZRANK', ready_key(r.queue, r.lane), ARGV[2]) or 0
local runs = numbers_of(r.queue, {'\n', r.lane})
return {NOW, record, call('HGETALL', t.key), is_probe_live(t) and 1 or 0, runs['\n'], runs[r.lane], ahead,
  r.state == 'r' and call('ZSCORE', LEASES, ARGV[2]) or ''}
