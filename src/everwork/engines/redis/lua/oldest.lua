-- Purpose: find when the longest-waiting due job of each queue became due; reads a bounded number of queues.
-- Inputs: now; queues that may have pending jobs, none in the first call.
-- Returns: these queues in the first call. Then how many were read, in their order; and, flat, the name and run_at of
--   each that has due jobs and whose group was not dropped.
-- Parts: prelude records traits running effects queues candidates
-- The maximum number of lanes and priorities to scan per queue, and per call; a call that reaches it ends after the
-- current queue.
local LOOK_MAX, ENOUGH = @OLDEST_SCAN_MAX@, 2 * @OLDEST_SCAN_MAX@
local scanned = 0

local function head_of(key, from) -- The lowest score of a set.
  return tonumber(call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

-- The lowest run_at of a lane, from the first job of each priority. Ignores jobs later than now, which exist if the
-- clock was set back.
local function oldest_in(key, left)
  local oldest, score = nil, head_of(key, '-inf')
  while score and left > 0 do
    local step = math.floor(score / PRIORITY_STEP)
    local run_at = score - step * PRIORITY_STEP
    if run_at <= now and not (oldest and oldest <= run_at) then oldest = run_at end
    scanned, left = scanned + 1, left - 1
    score = head_of(key, fmt('%.0f', (step + 1) * PRIORITY_STEP))
  end
  return oldest
end

local function oldest_of(queue) -- Includes lanes at their limit, and due jobs that are not promoted yet.
  local oldest, last = head_of(future_key(queue), '-inf'), scanned + LOOK_MAX
  if oldest and oldest > now then oldest = nil end
  for _, lanes in ipairs({lanes_key(queue), full_key(queue)}) do
    for _, lane in ipairs(call('ZRANGE', lanes, 0, LOOK_MAX - 1)) do
      local found = oldest_in(ready_key(queue, lane), last - scanned)
      if found and not (oldest and oldest < found) then oldest = found end
    end
  end
  return oldest
end

if #ARGV == 1 then return pending_queues('') end
local out = {0}
for i = 2, #ARGV do
  local queue = ARGV[i]
  if call('SISMEMBER', P .. ':dropped', queue) == 0 then
    local oldest, at = oldest_of(queue), #out
    if oldest then out[at + 1], out[at + 2] = queue, fmt('%.0f', oldest) end
  end
  scanned, out[1] = scanned + 1, i - 1
  if scanned >= ENOUGH then break end
end
return out
