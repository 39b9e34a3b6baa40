-- Purpose: count attempts by how long they waited and ran, and by the sort of their failure; core/measures.py names what is counted.
-- Inputs: records, traits, effects.
local BOUNDS = {@BOUNDS_MS@} -- Where the buckets end, inclusive; one more has what is longer.
local EXECUTION, WAIT = {sign = '@EXECUTION@', at = 0}, {sign = '@WAIT@', at = 0} -- The bucket found last, and the names of those found.

local function bucket_of(sort, ms) -- Neighbours are alike, so the search begins where the last one ended.
  local at = sort.at
  while at < #BOUNDS and ms > BOUNDS[at + 1] do at = at + 1 end
  while at > 0 and ms <= BOUNDS[at] do at = at - 1 end
  sort.at = at
  local name = sort[at]
  if not name then name = fmt('%s%02d', sort.sign, at); sort[at] = name end
  return name
end

local function measures_of(r) -- By name, of its type.
  local type = trait_for(r.queue).type
  local mine = measures[type]
  if not mine then mine = {}; measures[type] = mine end
  return mine
end

local function measure(mine, what, jobs) mine[what] = (mine[what] or 0) + jobs end

local function fell(r, what, spent, waited, why) -- One attempt that has failed.
  local mine = measures_of(r)
  measure(mine, bucket_of(EXECUTION, spent), 1)
  measure(mine, bucket_of(WAIT, waited), 1)
  measure(mine, why, 1)
  worked(r, what, 1, spent, waited)
end
