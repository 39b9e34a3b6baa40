-- Purpose: end attempts (completions and releases need only the guard; failures are ended as the core has decided),
--   create the jobs attached to completions, then lease jobs for demands. All or nothing: if any job has changed
--   since its outcome was decided, the script does nothing.
-- Inputs: now; segments, then per segment (no job twice in one):
--     'complete', n, n ids, n attempts, results, and per result its number in the segment and its text; or
--     'other', n, and per outcome id, attempt, verdict, guard, delay, max, kind, error, code, variables, '1' if the
--     breaker counts it, the name under which the failure is measured, traceback or '';
--   '1' and jobs (see parts/intake.lua; an owner is the number of a completion, starting at 1) or '0';
--   '1' and claims (see parts/claim.lua) or '0'.
--   attempt: 0 to check only the state. verdict: retry, fail, release, or '' if the job was not processing when read.
--   guard: attempt, attempts and max as they were read ('' for none). variables: a payload without rare values, or ''
--   to keep them.
-- Returns: 'again' if a job has changed since its decision; otherwise {refused, leased, now}. refused: per refused
--   outcome, its number across all segments, starting at 1; then '' if the job does not exist, or the job's state, its
--   latest attempt, and how the named attempt ended. leased: false, or the reply of parts/claim.lua.
-- Parts: prelude records traits running effects queues endings intake claim breakers work outcomes
local segments = tonumber(ARGV[2])
if not decisions_fit(3, segments) then return 'again' end
allow_writes_when_full()
local refused, at = {}, 3
for _ = 1, segments do
  if ARGV[at] == 'complete' then
    at = complete_all(at + 1, refused)
  else
    at = apply_all(at + 1, refused)
  end
end
settle_breakers()
if ARGV[at] == '1' then
  local _, _, after = accept(at + 1, function(owner) return completed[owner] end)
  at = after - 1
end
at = at + 1
local leased = false
if ARGV[at] == '1' then leased = activate(at + 1) end
finish()
return {refused, leased and answered(leased), NOW}
