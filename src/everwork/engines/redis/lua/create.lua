-- Purpose: accept jobs, all or none.
-- Inputs: now; producer and number (16 digits), both '' without a stamp; jobs, see parts/intake.lua.
-- Returns: the first key if every job has a new one and no copies; else per job its id, with '=' in front of an earlier
--   job's. 'outdated' if the producer has used a higher number.
-- The hash `producers` has for each an instant (15 digits), its last number (16 digits) and what was returned. The
--   instants, about an hour apart, are in `producers:at` too, by which a sweep forgets old producers.
-- Parts: records traits running effects queues intake
local producer, seen_at = ARGV[2], 0
if producer ~= '' then
  local known = call('HGET', P .. ':producers', producer)
  if known then
    local last = sub(known, 16, 31)
    if last > ARGV[3] then return 'outdated' end
    if last == ARGV[3] then
      local ids = {}
      for id in string.gmatch(sub(known, 32), '%S+') do ids[#ids + 1] = id end
      return ids
    end
    seen_at = tonumber(sub(known, 1, 15))
  end
end
local result, first = accept(4, function() return true end)
if producer ~= '' then
  if math.abs(now - seen_at) > 3600000 then
    seen_at = now
    call('ZADD', P .. ':producers:at', NOW, producer)
  end
  call('HSET', P .. ':producers', producer, fmt('%015.0f', seen_at) .. ARGV[3] .. table.concat(result, ' '))
end
finish()
return first or result
