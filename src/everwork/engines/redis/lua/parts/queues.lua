-- Purpose: the sorted sets of pending jobs (ready by lane, or scheduled), and how jobs enter and leave them.
-- Inputs: records, traits, running, effects.
local PRIORITY_STEP = 4398046511104 -- 2^42: 1,024 priorities and times until the year 2109 are exact in a double.
local SOON_MS = 1000 -- Waiters poll at least this often, so later jobs need no wake-up.

local scores = {}
local function ready_score(priority, run_at) -- Higher priority first, then run_at; the id breaks ties.
  local name = priority .. ' ' .. run_at
  local score = scores[name]
  if not score then
    score = fmt('%.0f', (@PRIORITY_MAX@ - priority) * PRIORITY_STEP + math.min(tonumber(run_at), PRIORITY_STEP - 1))
    scores[name] = score
  end
  return score
end

local function ready_key(queue, lane) return P .. ':ready:' .. queue .. '\n' .. lane end
local function future_key(queue) return P .. ':future:' .. queue end

local opened = {}
-- Adds a lane with ready work. A new lane comes first; a returning lane keeps its turn.
local function open_lane(queue, lane)
  local name = queue .. '\n' .. lane
  if opened[name] then return end
  opened[name] = true
  local lanes = lanes_key(queue)
  if call('ZSCORE', lanes, lane) then return end
  if trait_for(queue).max_per_key and call('ZSCORE', full_key(queue), lane) then return end
  local served = P .. ':served:' .. queue
  local turn = call('HGET', served, lane)
  call('ZADD', lanes, turn or 0, lane)
  if turn then call('HDEL', served, lane) end
end

local function close_lane(queue, lane)
  for _, lanes in ipairs({lanes_key(queue), full_key(queue)}) do
    local turn = call('ZSCORE', lanes, lane)
    if turn then
      call('ZREM', lanes, lane)
      call('HSET', P .. ':served:' .. queue, lane, turn)
    end
  end
  opened[queue .. '\n' .. lane] = nil
end

local function enter_pending(id, r, run_at) -- r has the job's queue, lane, priority and expiry.
  if run_at <= now then
    call('ZADD', ready_key(r.queue, r.lane), ready_score(r.priority, fmt('%.0f', run_at)), id)
    open_lane(r.queue, r.lane)
  else
    call('ZADD', future_key(r.queue), fmt('%.0f', run_at), id)
  end
  if run_at <= now + SOON_MS then woken[r.queue] = true end
  if r.expires ~= '' then call('ZADD', EXPIRY, r.expires, id) end
end

local function leave_pending(id, r)
  local ready = ready_key(r.queue, r.lane)
  if call('ZREM', ready, id) == 0 then
    call('ZREM', future_key(r.queue), id)
  elseif call('EXISTS', ready) == 0 then
    close_lane(r.queue, r.lane)
  end
end
