-- Purpose: the marks of triggers. Inputs: records, entries.
-- A mark is an entry of the registry: when the trigger started, and the last scheduled time that has passed.
local function mark_of(trigger) -- Returns nothing if the trigger has not started, or its entry is not a mark.
  local entry = call('HGET', ENTRIES, 'trigger-mark\0' .. trigger)
  local began, last = string.match(entry or '', '^%d*\n(%d+) (%d+)$')
  if began and #began <= 16 and #last <= 16 then return began, last end
end

local function put_mark(trigger, began, last) put_entry('trigger-mark\0' .. trigger, '', began .. ' ' .. last) end
