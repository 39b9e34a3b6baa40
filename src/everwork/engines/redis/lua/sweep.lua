-- Purpose: one bounded step of maintenance: expiries and jobs of dropped groups; for the holder of the turn also
--   retention, requeues of dead letters, recounts and tidying.
-- Inputs: now; holder; turn_ms; how long to keep completed and cancelled jobs, and failed jobs (ms); how many hours
--   of statistics and how many producers to keep.
-- Returns: if there are expired leases, a list with the id, state, own policy or '' and index of the type's policy for
--   each, and a list of these policies; the script has then done nothing else, and is called again once these leases
--   are ended. Otherwise an empty list, the number of jobs that have expired, the number requeued, the number deleted,
--   and '1' if there is more to do.
-- Parts: prelude records traits running effects queues endings removal entries policies recount upkeep
local lapsed = lapsed_leases()
if #lapsed > 0 then return {lapsed, policies} end
allow_writes_when_full()
local expired, has_more = expire()
if cancel_dropped() then has_more = true end
local deleted, requeued = 0, 0
local has_turn, is_new = holds_turn(ARGV[2], tonumber(ARGV[3]))
if has_turn then
  local more_running, more_unplaced, more_dead = recount(is_new), index_finished_jobs(), nil
  requeued, more_dead = requeue_dead_letters()
  -- Failed jobs are deleted only once none of them can be requeued automatically.
  deleted = retain_all({c = tonumber(ARGV[4]), f = not more_unplaced and not more_dead and tonumber(ARGV[5]) or nil})
  local more_hours, more_failures = forget_hour(tonumber(ARGV[6])), index_failures()
  has_more = has_more or more_failures or more_running or more_unplaced or more_dead or more_hours or scanned >= STEP
  forget_producers(tonumber(ARGV[7]))
  tidy()
  tidy_entries()
end
finish()
return {{}, expired, requeued, deleted, has_more and '1' or ''}
