-- Purpose: mark scheduled times of triggers as passed, each exactly once, and create their jobs.
-- Inputs: now; fires, then per fire trigger, point; '1' and jobs (see parts/intake.lua; an owner is the number of a
--   fire, starting at 1) or '0'.
-- Returns: per fire '1' if it is accepted, otherwise '0', when its trigger started, and the last scheduled time that
--   has passed; then one id per job, with '=' before the id of an earlier job, '' if its scheduled time had passed.
-- Parts: prelude records traits running effects queues intake entries marks
local n, marks, passed, out = tonumber(ARGV[2]), {}, {}, {}
for i = 1, n do
  local trigger, point = ARGV[1 + 2 * i], ARGV[2 + 2 * i]
  local mark = marks[trigger]
  if not mark then
    local began, last = mark_of(trigger)
    mark = {began = began or point, last = last}
    marks[trigger] = mark
  end
  if not mark.last or tonumber(point) > tonumber(mark.last) then
    mark.last, mark.moves, passed[i] = point, true, true
  end
  out[i] = table.concat({passed[i] and '1' or '0', mark.began, mark.last}, ' ')
end
for trigger, mark in pairs(marks) do
  if mark.moves then put_mark(trigger, mark.began, mark.last) end
end
local at = 3 + 2 * n
if ARGV[at] == '1' and next(passed) then
  for _, id in ipairs((accept(at + 1, function(fire) return passed[fire] end))) do out[#out + 1] = id end
  finish()
end
return out
