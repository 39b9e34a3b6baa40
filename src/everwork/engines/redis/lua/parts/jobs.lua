-- Purpose: read whole jobs. Inputs: records; ids.
-- Returns: states, payloads, errors, results, lease ends, each in the order of ids; false where there is none.
local function read_jobs(ids)
  local runs, ends = runs_of(ids), {}
  local states = fetch(STATES, ids, runs)
  for i = 1, #ids do
    ends[i] = states[i] and sub(states[i], 31, 31) == 'r' and call('ZSCORE', LEASES, ids[i])
  end
  return states, fetch(PAYLOADS, ids, runs), fetch(ERRORS, ids, runs), fetch(RESULTS, ids, runs), ends
end
