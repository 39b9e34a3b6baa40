-- Purpose: check leases. Inputs: records; ARGV from `at` on: per lease id, attempt. Calls held(id) for each lease that
--   is held.
local function judge_leases(at, held)
  local letters, ids = {}, {}
  for i = at, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  local records = fetch(STATES, ids)
  for i, id in ipairs(ids) do
    local r = records[i] and parse(sub(records[i], 31))
    local letter = 'l'
    if r and r.attempt == ARGV[at + 2 * i - 1] then
      if r.state == 'r' then
        letter = 'h'
        held(id)
      elseif r.state == 'x' and r.kind == 'cancel' then
        letter = 'c'
      end
    end
    letters[i] = letter
  end
  return table.concat(letters)
end
