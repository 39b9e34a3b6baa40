-- Purpose: one bounded step of upkeep: expiries and jobs of dropped groups; for the holder of the turn retention, the return of
--   dead letters, counting and tidying, too.
-- Inputs: now; holder; turn_ms; ms that completed and cancelled jobs, and ms that failed jobs are kept; hours of statistics kept.
-- Returns: per lapsed lease its id, state, own policy or '' and the number of its type's policy, in a list of its own, and these
--   policies: then nothing else was done, and it is called again after they are written; else an empty list, how many expired, were requeued, were deleted, and whether there is more ('1').
-- Parts: records traits running effects places endings removal entries policies recount upkeep
local lapsed = lapsed_leases()
if #lapsed > 0 then return {lapsed, policies} end
write_though_full()
local expired, has_more = expire()
if cancel_stranded() then has_more = true end
local deleted, requeued = 0, 0
local has_turn, is_new = holds_turn(ARGV[2], tonumber(ARGV[3]))
if has_turn then
  local more_running, more_unplaced, more_dead = recount(is_new), place_some(), nil
  requeued, more_dead = return_dead()
  -- Only who has no chance to come back any more may go.
  deleted = retain_all({c = tonumber(ARGV[4]), f = not more_unplaced and not more_dead and tonumber(ARGV[5]) or nil})
  local more_hours = forget_hour(tonumber(ARGV[6]))
  has_more = has_more or more_running or more_unplaced or more_dead or more_hours or looked >= STEP
  tidy()
  tidy_entries()
end
finish()
return {{}, expired, requeued, deleted, has_more and '1' or ''}
