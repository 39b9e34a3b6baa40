-- Purpose: the policies of types, each said once however many jobs it holds for. Inputs: records.
local policies, numbers = {}, {}

local function policy_number(r) -- Where the policy of a job's type stands in `policies`; 0 if it has none.
  local type = type_of(r.queue)
  if not numbers[type] then
    local policy = call('HGET', P .. ':t:' .. type, 'policy')
    if policy then policies[#policies + 1] = policy end
    numbers[type] = policy and #policies or 0
  end
  return numbers[type]
end
