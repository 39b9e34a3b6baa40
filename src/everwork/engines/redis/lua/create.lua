-- Purpose: accept jobs, all or none.
-- Inputs: now; producer and number (16 digits), both '' without a stamp; jobs, see parts/intake.lua. A single plain job
--   has a shorter form, see parts/create_one.lua.
-- Returns: the first key if every job got a new key and has no copies; otherwise one id per job, with '=' before the
--   id of an earlier job. 'outdated' if the producer has already used a higher number.
-- The hash `producers` stores, for each producer, a time (15 digits), its last number (16 digits) and the reply.
-- `producers:at` also stores these times, updated at most once an hour; a sweep uses it to delete old producers.
-- Parts: prelude create_one records traits running effects queues intake
local producer, number, producers, seen_at = ARGV[2], ARGV[3], nil, nil
if producer ~= '' then
  producers = P .. ':producers'
  local known = call('HGET', producers, producer)
  if known then
    local last = sub(known, 16, 31)
    if last > number then return 'outdated' end
    if last == number then
      local ids = {}
      for id in string.gmatch(sub(known, 32), '%S+') do ids[#ids + 1] = id end
      return ids
    end
    seen_at = sub(known, 1, 15)
  end
end
local result, first = accept(4, function() return true end)
if producers then
  if not seen_at or math.abs(now - seen_at) > 3600000 then
    seen_at = fmt('%015.0f', now)
    call('ZADD', producers .. ':at', NOW, producer)
  end
  call('HSET', producers, producer, seen_at .. number .. (result[2] and table.concat(result, ' ') or result[1]))
end
finish()
return first or result
