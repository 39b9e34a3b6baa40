-- Purpose: one bounded step of upkeep: expiries and jobs of dropped groups; for the holder of the turn retention, the return of
--   dead letters and tidying, too.
-- Inputs: now; holder; turn_ms; ms that completed and cancelled jobs, and ms that failed jobs are kept; hours of statistics kept.
-- Returns: per lapsed lease its id, state, own policy or '' and the number of its type's policy, in a list of its own, and these
--   policies: then nothing else was done, and it is called again after they are written; else an empty list, how many expired, were requeued, were deleted, and whether there is more ('1').
-- Parts: records traits running effects places endings removal entries policies upkeep
local lapsed = lapsed_leases()
if #lapsed > 0 then return {lapsed, policies} end
write_though_full()
local expired, has_more = expire()
if cancel_stranded() then has_more = true end
local deleted, requeued = 0, 0
if holds_turn(ARGV[2], tonumber(ARGV[3])) then
  local more_unplaced, more_dead = place_some(), nil
  deleted = retain_all({c = tonumber(ARGV[4]), f = tonumber(ARGV[5])})
  requeued, more_dead = return_dead()
  has_more = has_more or more_unplaced or more_dead or looked >= STEP
  tidy(tonumber(ARGV[6]))
end
finish()
return {{}, expired, requeued, deleted, has_more and '1' or ''}
