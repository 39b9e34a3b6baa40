-- Purpose: find the store's version, or begin a new store; safe when several start at once.
-- Inputs: now; the version of this program; '1' to begin a store where there is none.
-- Returns: the version found, or written; the numbers of the last wake-ups for work and for results. Nothing when there is no store.
-- Parts: records
local version = call('GET', P .. ':version')
if not version then
  if ARGV[3] ~= '1' then return false end
  version = ARGV[2]
  begin_store()
end
local rung = call('HMGET', P .. ':bell', 'work', 'done')
return {version, rung[1] or '0', rung[2] or '0'}
