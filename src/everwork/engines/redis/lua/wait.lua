-- Purpose: flag that a process is waiting, and return the number of the last wake-up.
-- Inputs: now; 'done' for finished jobs, or 'work' and the types to wait for.
-- Returns: the number of the last wake-up of that kind.
-- Parts: prelude records
allow_writes_when_full()
if ARGV[2] == 'done' then
  call('HSETNX', P .. ':bell', 'd', 1)
  return call('HGET', P .. ':bell', 'done') or '0'
end
for i = 3, #ARGV do
  call('HSETNX', P .. ':bell', 'w' .. ARGV[i], 1)
  local groups = call('HGET', P .. ':t:' .. ARGV[i], 'groups') or ''
  for group in string.gmatch(groups, '[^\31]+') do
    call('HSETNX', P .. ':bell', 'w' .. ARGV[i] .. '\31' .. group, 1)
  end
end
return call('HGET', P .. ':bell', 'work') or '0'
