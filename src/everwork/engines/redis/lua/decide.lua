-- Purpose: read what the core needs to decide what happens after a failed attempt.
-- Inputs: now; ids.
-- Returns: a list of the types' policies; then per id, flat: attempt, attempts, max ('' unless the job is processing);
--   the job's own policy or ''; the index of its type's policy in the list, 0 for none.
-- Parts: prelude records policies
local ids, out = {}, {policies}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
local records, own = fetch(STATES, ids), fetch(OWN_POLICIES, ids)
for i = 1, #ids do
  local r = records[i] and parse(sub(records[i], 31))
  local at = #out
  if r and r.state == 'r' then
    out[at + 1] = r.attempt .. ' ' .. r.attempts .. ' ' .. r.max
    out[at + 2], out[at + 3] = own[i] or '', policy_number(r)
  else
    out[at + 1], out[at + 2], out[at + 3] = '', '', 0
  end
end
return out
