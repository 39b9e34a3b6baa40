-- Purpose: change jobs one by one. Inputs: records. act(id, record, r) returns accepted, repeated or wrong_state.
-- Returns: for each id, starting at ARGV[at]: the verdict, the state before the change, attempts, max; '' if the job
--   does not exist.
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
