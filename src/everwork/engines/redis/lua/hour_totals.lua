-- Purpose: sum the hourly statistics over workers, of all types together or of one; reads a bounded number of sums.
-- Inputs: now; hours; a type, '' for all; the hour to continue after, '' for the first.
-- Returns: the hour to continue after, '' at the end; then flat: the hour, a list of names and sums.
-- Parts: prelude records
local ENOUGH = 5000
local from = '(' .. (ARGV[4] ~= '' and ARGV[4] or math.floor(now / 3600000) - ARGV[2])
local NAMES = {execution = 'execution_ms', wait = 'wait_ms'} -- Others keep their name.
local out, scanned = {''}, 0

local function add(sums, name, by) sums[name] = (sums[name] or 0) + by end

for _, hour in ipairs(call('ZRANGEBYSCORE', P .. ':hours', from, '+inf')) do
  local sums, types, flat = {}, {}, {}
  local work = call('HGETALL', P .. ':w:' .. hour)
  for i = 1, #work, 2 do
    local what, type = string.match(work[i], '^(%a+)\n([^\n]*)\n')
    if ARGV[3] == '' or ARGV[3] == type then
      types[type] = true
      add(sums, NAMES[what] or what, work[i + 1])
    end
  end
  scanned = scanned + #work / 2
  for type in pairs(types) do
    local measures = call('HGETALL', P .. ':m:' .. hour .. ':' .. type)
    for i = 1, #measures, 2 do add(sums, measures[i], measures[i + 1]) end
    scanned = scanned + #measures / 2
  end
  for name, by in pairs(sums) do
    flat[#flat + 1], flat[#flat + 2] = name, fmt('%.0f', by)
  end
  out[#out + 1], out[#out + 2] = hour, flat
  if scanned >= ENOUGH then
    out[1] = hour
    break
  end
end
return out
