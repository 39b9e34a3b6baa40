-- Purpose: the entries of the registry: a hash whose fields are strings made of kind and name, and a sorted set that
--   keeps these strings in order.
-- Inputs: records. An entry consists of its expiry or '', a line feed, and its body.
local ENTRIES, ENTRY_NAMES = P .. ':registry', P .. ':registered'

local function put_entry(name, till, body)
  call('HSET', ENTRIES, name, till .. '\n' .. body)
  call('ZADD', ENTRY_NAMES, 0, name)
end

local function forget_entry(name)
  call('HDEL', ENTRIES, name)
  call('ZREM', ENTRY_NAMES, name)
end
