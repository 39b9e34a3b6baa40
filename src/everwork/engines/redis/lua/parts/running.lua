-- Purpose: how many jobs run, of a queue and of each of its lanes with a limit key; only for types with such limits.
-- Inputs: records, traits. A hash per queue: the lanes, and \n for all of them. A lane with ready work that is at its limit stands not
-- among the lanes of its queue but among the full ones, with its turn, until a job of it ends.
local running, freed = {}, {} -- By queue: what changes, to be written; whether somebody may start who could not before.

local function lanes_key(queue) return P .. ':lanes:' .. queue end
local function full_key(queue) return P .. ':full:' .. queue end
local function run_key(queue) return P .. ':run:' .. queue end
local function has_limit_key(lane) return lane ~= '' and sub(lane, -1) ~= '\31' end

local function ran(r, by) -- So many more of a job's sort run.
  local t = trait_of(type_of(r.queue))
  if not (t.max_running or t.max_per_key) then return end
  local q = running[r.queue]
  if not q then q = {t = t, total = 0, lanes = {}}; running[r.queue] = q end
  q.total = q.total + by
  if t.max_per_key and has_limit_key(r.lane) then q.lanes[r.lane] = (q.lanes[r.lane] or 0) + by end
end

local function numbers_of(key, fields)
  local out = {}
  for i = 1, #fields, CHUNK do
    for _, number in ipairs(call('HMGET', key, unpack(fields, i, math.min(i + CHUNK - 1, #fields)))) do out[#out + 1] = tonumber(number or 0) end
  end
  return out
end

local function reopen_lane(queue, lane)
  local turn = call('ZSCORE', full_key(queue), lane)
  if not turn then return end
  call('ZREM', full_key(queue), lane)
  call('ZADD', lanes_key(queue), turn, lane)
  freed[queue] = true
end

local function flush_lanes(queue, q)
  local lanes, set, gone = {}, {}, {}
  for lane, by in pairs(q.lanes) do if by ~= 0 then lanes[#lanes + 1] = lane end end
  for i, before in ipairs(numbers_of(run_key(queue), lanes)) do
    local lane = lanes[i]
    local after = before + q.lanes[lane]
    if after > 0 then set[#set + 1] = lane; set[#set + 1] = after else gone[#gone + 1] = lane end
    if before >= q.t.max_per_key and after < q.t.max_per_key then reopen_lane(queue, lane) end
  end
  many('HSET', run_key(queue), set)
  many('HDEL', run_key(queue), gone)
end

local function flush_total(queue, q)
  if q.total == 0 then return end
  local after, limit = call('HINCRBY', run_key(queue), '\n', q.total), q.t.max_running
  if after == 0 then call('HDEL', run_key(queue), '\n') end
  if limit and after < limit and after - q.total >= limit then freed[queue] = true end
end

local function flush_running()
  for queue, q in pairs(running) do
    flush_total(queue, q)
    flush_lanes(queue, q)
  end
  running = {}
end

local function running_of(queue)
  local q = running[queue]
  return tonumber(call('HGET', run_key(queue), '\n') or 0) + (q and q.total or 0)
end
