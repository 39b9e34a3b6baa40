-- Purpose: add finished attempts to the statistics of their hour; the names are in core/measures.py.
-- Inputs: records, traits, effects. Work is summed by type \n worker, measures by type.
local BOUNDS = {@BOUNDS_MS@, math.huge} -- The inclusive upper bounds of the buckets.
local EXECUTION, WAIT = {@EXECUTION_NAMES@}, {@WAIT_NAMES@}
local at = 1 -- Consecutive values are similar, so the search for a bucket starts where the last one ended.

local function bucket_of(names, ms)
  while ms > BOUNDS[at] do at = at + 1 end
  while at > 1 and ms <= BOUNDS[at - 1] do at = at - 1 end
  return names[at]
end

local function sums_for(all_sums, name)
  local sums = all_sums[name]
  if not sums then sums = {}; all_sums[name] = sums end
  return sums
end

local function measures_of(r) return sums_for(measured, trait_for(r.queue).type) end

local function add(sums, what, by) sums[what] = (sums[what] or 0) + by end

local function add_work(r, what, jobs, execution_ms, wait_ms)
  local sums = sums_for(work, trait_for(r.queue).type .. '\n' .. r.worker)
  add(sums, what, jobs)
  add(sums, 'execution', execution_ms)
  add(sums, 'wait', wait_ms)
end

-- Adds one failed attempt, without a run time if that is unknown.
local function add_failure(r, what, execution_ms, wait_ms, measured_as)
  local measures = measures_of(r)
  if execution_ms then add(measures, bucket_of(EXECUTION, execution_ms), 1) end
  add(measures, bucket_of(WAIT, wait_ms), 1)
  add(measures, measured_as, 1)
  add_work(r, what, 1, execution_ms or 0, wait_ms)
end
