-- Purpose: what attempts that end add to the statistics of their hour; core/measures.py names what is measured.
-- Inputs: records, traits, effects. Work is summed up by type \n worker, what is measured by type.
local BOUNDS = {@BOUNDS_MS@, math.huge} -- Where the buckets end, inclusive.
local EXECUTION, WAIT = {@EXECUTION_NAMES@}, {@WAIT_NAMES@}
local at = 1 -- Neighbours are alike, so the search for a bucket begins where the last one ended.

local function bucket_of(names, ms)
  while ms > BOUNDS[at] do at = at + 1 end
  while at > 1 and ms <= BOUNDS[at - 1] do at = at - 1 end
  return names[at]
end

local function of(sums, who)
  local some = sums[who]
  if not some then some = {}; sums[who] = some end
  return some
end

local function measures_of(r) return of(measured, trait_for(r.queue).type) end

local function add(w, what, by) w[what] = (w[what] or 0) + by end

local function worked(r, what, jobs, execution_ms, wait_ms)
  local w = of(work, trait_for(r.queue).type .. '\n' .. r.worker)
  add(w, what, jobs)
  add(w, 'execution', execution_ms)
  add(w, 'wait', wait_ms)
end

local function fell(r, what, execution_ms, wait_ms, why) -- One attempt that has failed.
  local measures = measures_of(r)
  add(measures, bucket_of(EXECUTION, execution_ms), 1)
  add(measures, bucket_of(WAIT, wait_ms), 1)
  add(measures, why, 1)
  worked(r, what, 1, execution_ms, wait_ms)
end
