-- Purpose: jobs with all that a reader wants. Inputs: records; ids.
-- Returns: states, payloads, errors, results, lease ends, each in the order of ids; false where there is none.
local function whole(ids)
  local states, ends = fetch(S, ids), {}
  for i = 1, #ids do
    ends[i] = states[i] and sub(states[i], 31, 31) == 'r' and call('ZSCORE', LEASES, ids[i])
  end
  return states, fetch(J, ids), fetch(E, ids), fetch(O, ids), ends
end
