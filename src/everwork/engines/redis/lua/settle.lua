-- Purpose: end attempts: completions and releases by guard alone, failures as the core has decided; then create what
--   completions carried, then answer demands. All of it or, when a decision does not fit any more, nothing.
-- Inputs: now; segments, then per segment (no job twice in one):
--     'complete', n, n ids, n attempts, results, and per result its number in the segment and its text; or
--     'other', n, and per outcome id, attempt, verdict, guard, delay, max, kind, error, code, variables, '1' if the breaker counts it, what its failure is measured as;
--   '1' and jobs (see parts/intake.lua; their owners count the completions from 1 on) or '0'; '1' and claims (see parts/claim.lua) or '0'.
--   attempt 0: by state only. verdict: retry, fail, release, '' undecided because the job was not processing when it was read.
--   guard: attempt, attempts, max as they were read ('' for none). variables: a payload without anything rare, or '' if they stay.
-- Returns: 'again' when a decision does not fit; else {refused, leased, now}: per refused outcome, counted over all segments from 1 on, its number
--   and '' for no such job or its state, latest attempt, and how the named attempt ended; leased is false or the answer of parts/claim.lua.
-- Parts: records traits running effects places endings intake claim breakers work outcomes
local segments = tonumber(ARGV[2])
if not decisions_fit(3, segments) then return 'again' end
write_though_full()
local refused, at = {}, 3
for _ = 1, segments do
  if ARGV[at] == 'complete' then at = complete_all(at + 1, refused) else at = apply_all(at + 1, refused) end
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
