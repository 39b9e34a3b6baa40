-- Purpose: collect the policies of types, each only once, however many jobs share it. Inputs: records.
local policies, numbers = {}, {}

local function policy_number(r) -- The index of the policy of a job's type in `policies`; 0 if it has none.
  local type = type_of(r.queue)
  if not numbers[type] then
    local policy = call('HGET', P .. ':t:' .. type, 'policy')
    if policy then policies[#policies + 1] = policy end
    numbers[type] = policy and #policies or 0
  end
  return numbers[type]
end
