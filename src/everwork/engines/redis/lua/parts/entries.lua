-- Purpose: the entries of the registry: a hash keyed by kind and name in one string; a sorted set of these strings
--   keeps their order.
-- Inputs: records. An entry is its expiry or '', a line feed, its body.
local ENTRIES, ENTRY_NAMES = P .. ':registry', P .. ':registered'

local function put_entry(name, till, body)
  call('HSET', ENTRIES, name, till .. '\n' .. body)
  call('ZADD', ENTRY_NAMES, 0, name)
end

local function forget_entry(name)
  call('HDEL', ENTRIES, name)
  call('ZREM', ENTRY_NAMES, name)
end
