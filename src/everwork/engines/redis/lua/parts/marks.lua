-- Purpose: where triggers stand. Inputs: records, entries. A mark is an entry of the registry: when it began, the last point that has passed.
local function mark_of(trigger) -- Nothing if the trigger has not begun.
  local entry = call('HGET', ENTRIES, 'trigger-mark\0' .. trigger)
  if entry then return string.match(entry, '(%d+) (%d+)$') end
end

local function put_mark(trigger, began, last) put_entry('trigger-mark\0' .. trigger, '', began .. ' ' .. last) end
