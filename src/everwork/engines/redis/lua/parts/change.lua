-- Purpose: change jobs one by one. Inputs: records. act(id, record, r) returns accepted, repeated or wrong_state.
-- Returns: per id from ARGV[at] on: that verdict, the state it was found in, attempts, max; '' for no such job.
local function change(at, act)
  local out = {}
  for i = at, #ARGV do
    local record, tail = state_of(ARGV[i])
    if record then
      local r = parse(tail)
      out[#out + 1] = table.concat({act(ARGV[i], record, r), r.state, r.attempts, r.max}, ' ')
    else
      out[#out + 1] = ''
    end
  end
  return out
end
