-- Purpose: check the jobs of one bucket: each has a readable state and a payload, and is indexed under its state.
-- Inputs: now; the bucket to continue after, '' for the first.
-- Returns: this bucket, '' at the end; the ids of damaged jobs. At the end those that other scripts have noted, and that
--   still exist.
-- Parts: prelude records traits running effects queues
local after, damaged = ARGV[2], {}
local bucket = call('ZRANGEBYLEX', P .. ':buckets', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, 1)[1]
if not bucket then
  for _, id in ipairs(call('SMEMBERS', P .. ':damaged')) do
    if call('HEXISTS', PAYLOADS .. sub(id, 1, 13), id) == 1 and not state_of(id) then damaged[#damaged + 1] = id end
  end
  return {'', damaged}
end
local states = call('HGETALL', STATES .. bucket)
for i = 1, #states, 2 do
  local id, r = states[i], parse(sub(states[i + 1], 31))
  local is_sound = r and string.match(sub(states[i + 1], 1, 30), '^%d+$') and call('HEXISTS', PAYLOADS .. bucket, id) == 1
  if is_sound and r.state == 'r' then is_sound = call('ZSCORE', LEASES, id) end
  if is_sound and r.state == 'p' then
    is_sound = call('ZSCORE', ready_key(r.queue, r.lane), id) or call('ZSCORE', future_key(r.queue), id)
  end
  if not is_sound then damaged[#damaged + 1] = id end
end
return {bucket, damaged}
