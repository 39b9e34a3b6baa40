-- Purpose: the steps of a sweep. Inputs: records, effects, queues, endings, removal, entries.
local TIDY_EVERY_MS, TIDY_BYTES, LANES_KEPT = 3600000, 1000000, 100000

local function lapsed_leases()
  local ids = call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, STEP)
  local records, own, out = fetch(STATES, ids), fetch(OWN_POLICIES, ids), {}
  for i, id in ipairs(ids) do
    local r, at = records[i] and parse(sub(records[i], 31)), #out
    if r then
      out[at + 1], out[at + 2], out[at + 3], out[at + 4] = id, records[i], own[i] or '', policy_number(r)
    else
      call('ZREM', LEASES, id)
      call('SADD', P .. ':damaged', id)
    end
  end
  return out
end

local function cancel_queue(queue, reason, step) -- Cancels up to `step` pending jobs; returns how many.
  local ids = call('ZRANGE', future_key(queue), 0, step - 1)
  for _, lanes in ipairs({lanes_key(queue), full_key(queue)}) do
    for _, lane in ipairs(call('ZRANGE', lanes, 0, step - 1)) do
      if #ids >= step then break end
      for _, id in ipairs(call('ZRANGE', ready_key(queue, lane), 0, step - #ids - 1)) do ids[#ids + 1] = id end
    end
  end
  return cancel_pending(ids, 'cancel', reason)
end

local function cancel_dropped() -- Pending jobs of dropped groups: no worker will ever poll for them.
  local has_more = false
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do
    if cancel_queue(queue, 'its group was dropped', STEP) >= STEP then has_more = true end
  end
  return has_more
end

local function holds_turn(holder, turn_ms) -- Also returns whether another process held the turn before.
  local till, owner = string.match(call('HGET', P .. ':turns', 'sweep') or '0\n', '^(%d+)\n(.*)$')
  local left = till - now
  if left > 0 and owner ~= holder then return false, false end
  if left < turn_ms / 2 then call('HSET', P .. ':turns', 'sweep', fmt('%.0f', now + turn_ms) .. '\n' .. holder) end
  return true, owner ~= holder
end

local scanned = 0 -- How many finished jobs this step has checked; bounded.

local function retain_later(id, r, kept) -- Listed by time: these jobs are not found in the order they finished.
  call('ZADD', P .. ':loaded:' .. kept_as(trait_for(r.queue), kept), r.finished, id)
end

local function remove_old(ids, kept, usual_ms) -- Deletes jobs past their retention; returns how many.
  local old, records = {}, {}
  for i, record in ipairs(fetch(STATES, ids)) do
    local r = record and parse(sub(record, 31))
    -- The job may have been deleted, or requeued and finished again.
    if r and r.finished ~= '' and (r.state == 'f') == (kept == 'f') then
      if r.finished + (trait_for(r.queue)['keep_' .. kept] or usual_ms) <= now then
        old[#old + 1], records[#records + 1] = ids[i], record
      else
        retain_later(ids[i], r, kept)
      end
    end
  end
  scanned = scanned + #ids
  remove(old, records)
  return #old
end

local function retain_loaded(list, kept, keep_ms, usual_ms) -- The same as retain, for jobs that are listed by time.
  local key = P .. ':loaded:' .. list
  local ids = call('ZRANGEBYSCORE', key, '-inf', fmt('%.0f', now - keep_ms), 'LIMIT', 0, math.max(STEP - scanned, 0))
  if #ids == 0 then return 0 end
  call_many('ZREM', key, ids)
  return remove_old(ids, kept, usual_ms)
end

local function retain(list, kept, keep_ms, usual_ms) -- Deletes finished jobs past their retention; returns how many.
  local key = P .. ':old:' .. list
  local gone = retain_loaded(list, kept, keep_ms, usual_ms)
  while scanned < STEP do
    local entry = call('LINDEX', key, 0)
    if not entry or tonumber(sub(entry, 1, 15)) + keep_ms > now then return gone end
    call('LPOP', key)
    local ids = {}
    for id in string.gmatch(sub(entry, 17), '%d+') do ids[#ids + 1] = id end
    gone = gone + remove_old(ids, kept, usual_ms)
  end
  return gone
end

local function retain_all(usual) -- usual: default retention for 'c', 'f' or both. Returns how many were deleted.
  local gone = 0
  for kept, usual_ms in pairs(usual) do gone = gone + retain(kept, kept, usual_ms, usual_ms) end
  for _, type in ipairs(call('SMEMBERS', P .. ':keeps')) do
    local t, lists = trait_of(type), {}
    for kept, usual_ms in pairs(usual) do
      local list = kept .. ':' .. type
      gone = gone + retain(list, kept, t['keep_' .. kept] or usual_ms, usual_ms)
      lists[#lists + 1] = P .. ':old:' .. list
      lists[#lists + 1] = P .. ':loaded:' .. list
    end
    if #lists == 4 and not (t.keep_c or t.keep_f) and call('EXISTS', unpack(lists)) == 0 then
      call('SREM', P .. ':keeps', type)
    end
  end
  return gone
end

-- Requeues the job unless it was rejected, has expired, or has used up its automatic requeues; returns 1 if requeued.
local function requeue_automatically(id, record, r, t)
  local rounds = tonumber(call('HGET', REQUEUE_ROUNDS .. sub(id, 1, 13), id) or 0)
  if r.kind == 'reject' or r.expires ~= '' and tonumber(r.expires) <= now or rounds >= t.requeue_rounds then
    return 0
  end
  put(REQUEUE_ROUNDS, id, rounds + 1)
  requeue(id, record, r, r.created_max, 'automatic')
  return 1
end

local function requeue_dead_letters() -- Requeues due dead letters; returns how many, and whether there may be more.
  local requeued, left, dropped = 0, STEP, {}
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do dropped[queue] = true end
  for _, type in ipairs(call('SMEMBERS', P .. ':agains')) do
    local t, key = trait_of(type), P .. ':again:' .. type
    local due = fmt('%.0f', now - (t.requeue_ms or 0))
    local ids = t.requeue_ms and call('ZRANGEBYSCORE', key, '-inf', due, 'LIMIT', 0, left) or {}
    call_many('ZREM', key, ids)
    for i, record in ipairs(fetch(STATES, ids)) do
      local r = record and parse(sub(record, 31))
      if r and r.state == 'f' and not dropped[r.queue] then
        requeued = requeued + requeue_automatically(ids[i], record, r, t)
      end
    end
    left = left - #ids
    if left == 0 then return requeued, true end
  end
  return requeued, false
end

local function index_finished(id, r) -- Adds a finished job to the lists that the rules of its type read.
  if r.finished == '' then return end
  local kept = r.state == 'f' and 'f' or 'c'
  if trait_for(r.queue)['keep_' .. kept] then retain_later(id, r, kept) end
  if r.state == 'f' then schedule_requeue(id, r, r.kind, r.finished) end
end

-- Indexes jobs that finished before their type got a rule for finished jobs (see parts/switch.lua); returns whether
-- there are more.
local function index_finished_jobs()
  local last, seen = call('GET', P .. ':unplaced'), 0
  if not last then return false end
  while seen < STEP do
    local bucket = call('ZRANGEBYLEX', P .. ':buckets', last == '' and '-' or '(' .. last, '+', 'LIMIT', 0, 1)[1]
    if not bucket then
      call('DEL', P .. ':unplaced')
      return false
    end
    local states = call('HGETALL', STATES .. bucket)
    for i = 1, #states, 2 do
      local r = parse(sub(states[i + 1], 31))
      if r then index_finished(states[i], r) end
    end
    last, seen = bucket, seen + #states / 2
  end
  call('SET', P .. ':unplaced', last)
  return true
end

-- Indexes dead letters of an earlier version, which did not store the order of failures; returns whether there are
-- more.
local function index_failures()
  if call('ZCARD', FAILED) <= call('ZCARD', FAILED_AT) then return false end
  local last = call('HGET', P .. ':turns', '\nfailures') or ''
  local ids = call('ZRANGEBYLEX', FAILED, last == '' and '-' or '(' .. last, '+', 'LIMIT', 0, STEP)
  for i, record in ipairs(fetch(STATES, ids)) do
    local r = record and parse(sub(record, 31))
    if r then call('ZADD', FAILED_AT, r.finished, ids[i]) end
  end
  call('HSET', P .. ':turns', '\nfailures', #ids == STEP and ids[STEP] or '')
  return #ids == STEP
end

local function forget_hour(hours_kept) -- Deletes one hour of old statistics; returns whether there was one.
  local first = math.floor(now / 3600000) - hours_kept
  local hour = call('ZRANGEBYSCORE', P .. ':hours', '-inf', '(' .. first, 'LIMIT', 0, 1)[1]
  if not hour then return false end
  local keys = call('SMEMBERS', P .. ':types')
  for i, type in ipairs(keys) do keys[i] = P .. ':m:' .. hour .. ':' .. type end
  call_many('UNLINK', P .. ':w:' .. hour, keys)
  call('ZREM', P .. ':hours', hour)
  return true
end

-- Deletes expired entries among the next ones of the registry. Some are long, so the total size read is bounded.
local function tidy_entries()
  local last_name, size = call('HGET', P .. ':turns', '\ntidying'), 0
  if not last_name then return end
  local names = call('ZRANGEBYLEX', ENTRY_NAMES, last_name == '' and '-' or '(' .. last_name, '+', 'LIMIT', 0, STEP)
  for i, name in ipairs(names) do
    local entry = call('HGET', ENTRIES, name) or ''
    local till = string.match(entry, '^(%d+)\n')
    if till and tonumber(till) <= now then forget_entry(name) end
    size = size + #entry
    if size >= TIDY_BYTES or i == STEP then
      call('HSET', P .. ':turns', '\ntidying', name)
      return
    end
  end
  call('HDEL', P .. ':turns', '\ntidying')
end

-- Deletes producers that have not been seen for long, and the oldest if there are more than `most`; see create.lua.
local function forget_producers(most)
  local by_time, before = P .. ':producers:at', fmt('(%.0f', now - @PRODUCER_KEEP_MS@)
  local old = call('ZRANGEBYSCORE', by_time, '-inf', before, 'LIMIT', 0, CHUNK)
  local excess = math.min(call('ZCARD', by_time) - most, CHUNK)
  if excess > #old then old = call('ZRANGE', by_time, 0, excess - 1) end
  call_many('HDEL', P .. ':producers', old)
  call_many('ZREM', by_time, old)
end

local function tidy() -- Once an hour.
  local since = now - (call('HGET', P .. ':turns', '\ntidied') or 0)
  if since >= 0 and since < TIDY_EVERY_MS then return end
  call('HSET', P .. ':turns', '\ntidied', NOW, '\ntidying', '')
  for _, type in ipairs(call('SMEMBERS', P .. ':types')) do
    local turn = tonumber(call('GET', P .. ':turn:' .. type) or 0)
    if turn > LANES_KEPT then
      local served = call('HGETALL', P .. ':served:' .. type)
      for i = 1, #served, 2 do
        if tonumber(served[i + 1]) < turn - LANES_KEPT then call('HDEL', P .. ':served:' .. type, served[i]) end
      end
    end
  end
end
