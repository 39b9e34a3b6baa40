-- Purpose: accept one plain job that is due now: the records that create.lua writes, without the time that a script
--   needs to define its functions. If a worker waits for the job, it is leased to that worker in the same step.
-- Inputs: now; type, lane, priority, max or '', payload. The job has no dedupe key, own policy, expiry or run_at.
-- Returns: its key; 0 if its type is not known yet, nothing if the type has groups or a limit per key. Then nothing is
--   written, and create.lua accepts the job.
-- A job is handed over only if it would be the first to be leased: nothing in its queue is ready or due, and no rule of
-- its type could hold it back. `parked`: see parts/claim.lua.
local P, call, fmt = KEYS[1], redis.call, string.format
local now = tonumber(ARGV[1])
if not now then
  local clock = call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local type, lane, priority, max, payload = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local of_type = P .. ':t:' .. type
local got = call('HMGET', of_type, 'known', 'groups', 'max', 'rules', 'paused', 'breaker', 'parked')
if not got[1] then return 0 end
if got[2] and got[2] ~= '' then return false end
local is_free = got[5] ~= '1' and not got[6]
if got[4] then
  local breaker, _, running, per_key, rate = string.match(got[4], '^(%S+) (%S+) (%S+) (%S+) (%S+)')
  if per_key ~= '-' then return false end
  is_free = is_free and breaker == '-' and running == '-' and rate == '-'
end
if max == '' then max = got[3] or '@ATTEMPTS_DEFAULT@' end

local till, token, lease_ms, worker
if got[7] and is_free and #payload <= @HANDED_BYTES_MAX@ then
  till, token, lease_ms, worker = string.match(got[7], '^(%d+) (%x+) (%d+) (.*)$')
  if tonumber(till) < now or tonumber(till) > now + @PARK_MS@
    or call('EXISTS', P .. ':lanes:' .. type, P .. ':full:' .. type) > 0
    or call('ZRANGEBYSCORE', P .. ':future:' .. type, '-inf', now, 'LIMIT', 0, 1)[1]
    or call('PUBSUB', 'NUMSUB', P .. ':hand:' .. token)[2] == 0 then
    worker = nil
  end
end

local key = call('INCR', P .. ':seq')
local id, bucket, NOW = fmt('%016.0f', key), fmt('%013.0f', math.floor(key / 1000)), fmt('%.0f', now)
local head = fmt('%015.0f%015.0f', now, now)
local shared = max .. '\n' .. max .. '\n' .. priority .. '\n' .. type .. '\n' .. lane .. '\n\n\n'
local tenant = lane == '' and '' or string.match(lane, '^(.-)\31')
call('HSET', P .. ':j:' .. bucket, id, payload)
call('ZADD', P .. ':buckets', 0, bucket)

if worker then
  local ends = fmt('%.0f', now + lease_ms)
  call('HSET', P .. ':s:' .. bucket, id, head .. 'r\n1\n1\n' .. shared .. '\n' .. NOW .. '\n\n' .. worker)
  call('ZADD', P .. ':leases', ends, id)
  call('HSET', P .. ':served:' .. type, lane, call('INCRBY', P .. ':turn:' .. type, 2) - 1)
  if call('HINCRBY', P .. ':n', 'r\n' .. type .. '\n' .. tenant, 1) == 0 then
    call('HDEL', P .. ':n', 'r\n' .. type .. '\n' .. tenant)
  end
  call('HDEL', of_type, 'parked')
  call('PUBLISH', P .. ':hand:' .. token, table.concat({id, head, max, priority, lane, type, ends, payload}, '\n'))
  return key
end

call('HSET', P .. ':s:' .. bucket, id, head .. 'p\n0\n0\n' .. shared .. '\n\n\n')
call('ZADD', P .. ':ready:' .. type .. '\n' .. lane,
  fmt('%.0f', (@PRIORITY_MAX@ - priority) * 4398046511104 + math.min(now, 4398046511103)), id)
local lanes, served = P .. ':lanes:' .. type, P .. ':served:' .. type
if not call('ZSCORE', lanes, lane) then
  local turn = call('HGET', served, lane)
  call('ZADD', lanes, turn or 0, lane)
  if turn then call('HDEL', served, lane) end
end
if call('HINCRBY', P .. ':n', 'p\n' .. type .. '\n' .. tenant, 1) == 0 then
  call('HDEL', P .. ':n', 'p\n' .. type .. '\n' .. tenant)
end
call('HINCRBY', P .. ':bell', 'work', 1)
if call('HDEL', P .. ':bell', 'w' .. type) == 1 then redis.pcall('PUBLISH', P .. ':work', type) end
return key
