-- Purpose: jobs with all that a reader wants. Inputs: records; ids.
-- Returns: states, payloads, errors, results, lease ends, each in the order of ids; false where there is none.
local function whole(ids)
  local runs, ends = runs_of(ids), {}
  local states = fetch(S, ids, runs)
  for i = 1, #ids do
    ends[i] = states[i] and sub(states[i], 31, 31) == 'r' and call('ZSCORE', LEASES, ids[i])
  end
  return states, fetch(J, ids, runs), fetch(E, ids, runs), fetch(O, ids, runs), ends
end
