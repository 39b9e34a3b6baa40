-- Purpose: accept one plain job that is due now, or lease it to a worker that waits for it, without the cost of
--   defining the functions of the parts that follow.
-- Inputs: prelude; ARGV: now; type, lane, priority, max or '', payload. What it writes is what create.lua and
--   activate.lua would have written. If its type is new, or has groups or a limit per key, it writes nothing, and the
--   parts that follow accept the job, in the form that they read.
-- A job is handed over only if it would be the first to be leased: nothing in its queue is ready or due, and no rule of
-- its type could hold it back. Its worker must be subscribed on this server, which is checked first: messages also
-- reach subscribers of replicas and of other cluster nodes.
local ARGV = ARGV -- The parts that follow read what is assigned to it below.

local function parked_demand(parked, type) -- The token, lease_ms and name of the worker that waits for the job.
  local till, token, lease_ms, worker = string.match(parked, '^(%d+) (%x+) (%d+) (.*)$')
  if not worker or tonumber(till) < now or tonumber(till) > now + @PARK_MS@ then return end
  if call('EXISTS', P .. ':lanes:' .. type, P .. ':full:' .. type) > 0 then return end
  if call('ZRANGEBYSCORE', P .. ':future:' .. type, '-inf', NOW, 'LIMIT', 0, 1)[1] then return end
  local heard = redis.pcall('PUBSUB', 'NUMSUB', P .. ':hand:' .. token) -- This user may not be allowed to run it.
  if heard[2] == 1 then return token, lease_ms, worker end
end

local function count_one(state, type, tenant)
  local field = state .. '\n' .. type .. '\n' .. tenant
  if call('HINCRBY', P .. ':n', field, 1) == 0 then call('HDEL', P .. ':n', field) end
end

local function create_one()
  local _, type, lane, priority, max, payload = unpack(ARGV)
  local key_of_type = P .. ':t:' .. type
  local known, groups, max_of_type, rules, paused, open_till, parked =
    unpack(call('HMGET', key_of_type, 'known', 'groups', 'max', 'rules', 'paused', 'breaker', 'parked'))
  if not known or (groups and groups ~= '') then return end
  if rules then
    local breaker, _, running, per_key, rate = string.match(rules, '^(%S+) (%S+) (%S+) (%S+) (%S+)')
    if per_key ~= '-' then return end
    if breaker .. running .. rate ~= '---' then parked = nil end
  end
  local token, lease_ms, worker
  if parked and paused ~= '1' and not open_till and #payload <= @HANDED_BYTES_MAX@ then
    token, lease_ms, worker = parked_demand(parked, type)
  end

  if max == '' then max = max_of_type or '@ATTEMPTS_DEFAULT@' end
  local key = call('INCR', P .. ':seq') -- If the server is out of memory, it refuses the first write, and only that.
  local id, bucket = fmt('%016.0f', key), fmt('%013.0f', math.floor(key / 1000))
  local head, tenant = fmt('%015.0f%015.0f', now, now), lane == '' and '' or string.match(lane, '^(.-)\31')
  local shared = table.concat({max, max, priority, type, lane, '', ''}, '\n')
  call('HSET', P .. ':j:' .. bucket, id, payload)
  call('ZADD', P .. ':buckets', 0, bucket)

  if worker then
    local ends = fmt('%.0f', now + lease_ms)
    call('HDEL', key_of_type, 'parked')
    local sent = redis.pcall('PUBLISH', P .. ':hand:' .. token,
      table.concat({id, head, max, priority, lane, type, ends, payload}, '\n'))
    if tonumber(sent) then -- Otherwise, this user may not publish to the channel.
      call('HSET', P .. ':s:' .. bucket, id, head .. 'r\n1\n1\n' .. shared .. '\n\n' .. NOW .. '\n\n' .. worker)
      call('ZADD', P .. ':leases', ends, id)
      call('HSET', P .. ':served:' .. type, lane, call('INCRBY', P .. ':turn:' .. type, 2) - 1)
      count_one('r', type, tenant)
      return key
    end
  end

  call('HSET', P .. ':s:' .. bucket, id, head .. 'p\n0\n0\n' .. shared .. '\n\n\n\n')
  call('ZADD', P .. ':ready:' .. type .. '\n' .. lane,
    fmt('%.0f', (@PRIORITY_MAX@ - priority) * 4398046511104 + math.min(now, 4398046511103)), id)
  local lanes, served = P .. ':lanes:' .. type, P .. ':served:' .. type
  if not call('ZSCORE', lanes, lane) then
    local turn = call('HGET', served, lane)
    call('ZADD', lanes, turn or 0, lane)
    if turn then call('HDEL', served, lane) end
  end
  count_one('p', type, tenant)
  call('HINCRBY', P .. ':bell', 'work', 1)
  if call('HDEL', P .. ':bell', 'w' .. type) == 1 then redis.pcall('PUBLISH', P .. ':work', type) end
  return key
end

if #ARGV == 6 then
  local key = create_one()
  if key then return key end
  local _, type, lane, priority, max, payload = unpack(ARGV)
  ARGV = {'', '', '', '1', type, lane, priority, '0', '', max, '', '1', '1', '1', '0', '', '', payload}
end
