-- Purpose: count the running jobs of each queue, and of each of its lanes with a limit key; only for types with such
--   limits.
-- Inputs: records, traits. One hash per queue: a field per lane, and \n for the total. A lane with ready work that is
--   at its limit is moved, with its turn, from the lanes of its queue to the full lanes until one of its jobs ends.
local running, freed = {}, {} -- By queue: changes to apply; whether jobs that were held back may start.
local known, changed = {}, {} -- By queue and lane: the number of running jobs; which of these numbers must be written.

local function lanes_key(queue) return P .. ':lanes:' .. queue end
local function full_key(queue) return P .. ':full:' .. queue end
local function run_key(queue) return P .. ':run:' .. queue end
local function error_key(queue) return P .. ':error:' .. queue end -- Exists during a recount; see parts/recount.lua.

local function begin_count(queue) call('HSET', run_key(queue), FILLER, 0) end

local function has_limit_key(lane) return lane ~= '' and string.byte(lane, -1) ~= 31 end

local function add_running(queue, lane, by) -- Adds to a lane, or to the total if the lane is \n.
  local q = running[queue]
  if not q then q = {t = trait_for(queue), total = 0, lanes = {}}; running[queue] = q end
  if lane == '\n' then q.total = q.total + by else q.lanes[lane] = (q.lanes[lane] or 0) + by end
end

local function count_running(r, by) -- Adds jobs of this queue and lane.
  local t = trait_for(r.queue)
  if not (t.max_running or t.max_per_key) then return end
  add_running(r.queue, '\n', by)
  if t.max_per_key and has_limit_key(r.lane) then add_running(r.queue, r.lane, by) end
end

local function numbers_of(queue, lanes) -- The number of running jobs by lane; can include other lanes.
  local numbers, unknown = known[queue] or {}, {}
  known[queue] = numbers
  for _, lane in ipairs(lanes) do
    if not numbers[lane] then unknown[#unknown + 1] = lane end
  end
  for i = 1, #unknown, CHUNK do
    local got = call('HMGET', run_key(queue), unpack(unknown, i, math.min(i + CHUNK - 1, #unknown)))
    for j = 1, #got do numbers[unknown[i + j - 1]] = tonumber(got[j] or 0) end
  end
  return numbers
end

local function reopen_lanes(queue, lanes) -- Reopens those of the lanes that are full.
  local gone, back = {}, {}
  for i = 1, #lanes, CHUNK do
    local turns = call('ZMSCORE', full_key(queue), unpack(lanes, i, math.min(i + CHUNK - 1, #lanes)))
    for j = 1, #turns do
      if turns[j] then
        gone[#gone + 1] = lanes[i + j - 1]
        back[#back + 1], back[#back + 2] = turns[j], lanes[i + j - 1]
      end
    end
  end
  if #gone == 0 then return end
  call_many('ZREM', full_key(queue), gone)
  call_many('ZADD', lanes_key(queue), back)
  freed[queue] = true
end

local function apply_lanes(queue, q)
  local lanes, limit, mine, open = {}, q.t.max_per_key, changed[queue] or {}, {}
  for lane, by in pairs(q.lanes) do
    if by ~= 0 then lanes[#lanes + 1] = lane end
  end
  local numbers = numbers_of(queue, lanes)
  for _, lane in ipairs(lanes) do
    local before = numbers[lane]
    local after = before + q.lanes[lane]
    numbers[lane], mine[lane] = after, true
    if before >= limit and after < limit then open[#open + 1] = lane end
  end
  reopen_lanes(queue, open)
  changed[queue] = mine
end

local function apply_total(queue, q)
  if q.total == 0 then return end
  local after, limit = call('HINCRBY', run_key(queue), '\n', q.total), q.t.max_running
  if after == 0 then call('HDEL', run_key(queue), '\n') end
  if limit and after < limit and after - q.total >= limit then freed[queue] = true end
end

local function apply_running() -- Applies the collected changes; ended jobs free their capacity.
  for queue, q in pairs(running) do
    apply_total(queue, q)
    apply_lanes(queue, q)
  end
  running = {}
end

-- A number below 0 is not stored, so a recount needs the difference.
local function note_deficit(queue, lane, number)
  if number < 0 and call('EXISTS', error_key(queue)) == 1 then
    call('HINCRBY', error_key(queue), lane, -number)
  end
end

local function write_running()
  apply_running()
  for queue, mine in pairs(changed) do
    local numbers, set, gone = known[queue], {}, {}
    for lane in pairs(mine) do
      local number, at = numbers[lane], #set
      if number > 0 then
        set[at + 1], set[at + 2] = lane, number
      else
        gone[#gone + 1] = lane
        note_deficit(queue, lane, number)
      end
    end
    call_many('HSET', run_key(queue), set)
    call_many('HDEL', run_key(queue), gone)
  end
end

local function running_of(queue)
  local q = running[queue]
  return tonumber(call('HGET', run_key(queue), '\n') or 0) + (q and q.total or 0)
end
