-- Purpose: the prelude of every script: the clock, and the prefix of every key.
-- Inputs: KEYS[1] the namespace in braces, which is never a key itself; ARGV[1] now in ms, '' for the server's own
--   clock. Because KEYS[1] does not exist, a cluster replies ASK to every call while it moves the slot: no call
--   works on a slot that is half moved.
local P, call, fmt, sub = KEYS[1], redis.call, string.format, string.sub
local now = tonumber(ARGV[1])
if not now then
  local clock = call('TIME')
  now = clock[1] * 1000 + math.floor(clock[2] / 1000)
end
local NOW = fmt('%.0f', now)
