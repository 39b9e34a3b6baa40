-- Purpose: read the store's version, or create the store; safe if several processes start concurrently.
-- Inputs: now; the version of this program; '1' to create a store if there is none.
-- Returns: the version found or written; the numbers of the last wake-ups for work and for finished jobs. Returns
--   nothing if there is no store.
-- Parts: prelude records
local version = call('GET', P .. ':version')
if not version then
  if ARGV[3] ~= '1' then return false end
  version = ARGV[2]
  create_store()
end
local numbers = call('HMGET', P .. ':bell', 'work', 'done')
return {version, numbers[1] or '0', numbers[2] or '0'}
