-- Purpose: the steps of a sweep. Inputs: records, effects, places, endings, removal, entries.
local TIDY_EVERY_MS, LANES_KEPT = 3600000, 100000

local function lapsed_leases()
  local ids = call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, STEP)
  local records, own, out = fetch(S, ids), fetch(OWN, ids), {}
  for i, id in ipairs(ids) do
    local at = #out
    out[at + 1], out[at + 2], out[at + 3], out[at + 4] = id, records[i], own[i] or '', policy_number(parse(sub(records[i], 31)))
  end
  return out
end

local function cancel_queue(queue, reason, step) -- Cancels what waits in a queue: how many, a bounded number.
  local ids = call('ZRANGE', future_key(queue), 0, step - 1)
  for _, lanes in ipairs({lanes_key(queue), full_key(queue)}) do
    for _, lane in ipairs(call('ZRANGE', lanes, 0, step - 1)) do
      if #ids >= step then break end
      for _, id in ipairs(call('ZRANGE', ready_key(queue, lane), 0, step - #ids - 1)) do ids[#ids + 1] = id end
    end
  end
  return cancel_pending(ids, 'cancel', reason)
end

local function cancel_stranded() -- Pending jobs of groups that were dropped: nobody will ever ask for them.
  local has_more = false
  for _, queue in ipairs(call('SMEMBERS', P .. ':dropped')) do
    if cancel_queue(queue, 'its group was dropped', STEP) >= STEP then has_more = true end
  end
  return has_more
end

local function holds_turn(holder, turn_ms)
  local till, who = string.match(call('HGET', P .. ':turns', 'sweep') or '0\n', '^(%d+)\n(.*)$')
  local left = till - now
  if left > 0 and who ~= holder then return false end
  if left < turn_ms / 2 then call('HSET', P .. ':turns', 'sweep', fmt('%.0f', now + turn_ms) .. '\n' .. holder) end
  return true
end

local function remove_old(ids, kept, keep_ms) -- Deletes those that are past their time: how many.
  local old, records = {}, {}
  for i, record in ipairs(fetch(S, ids)) do
    local r = record and parse(sub(record, 31))
    -- It may have been deleted, or requeued and finished again.
    if r and r.finished ~= '' and (r.state == 'f') == (kept == 'f') and r.finished + keep_ms <= now then
      old[#old + 1], records[#records + 1] = ids[i], record
    end
  end
  remove(old, records)
  return #old
end

local function retain_loaded(kept, keep_ms) -- The same as retain, for jobs that have come from another store.
  local key = P .. ':loaded:' .. kept
  local ids = call('ZRANGEBYSCORE', key, '-inf', fmt('%.0f', now - keep_ms), 'LIMIT', 0, STEP)
  if #ids == 0 then return 0, false end
  many('ZREM', key, ids)
  return remove_old(ids, kept, keep_ms), #ids == STEP
end

local function retain(kept, keep_ms) -- Deletes finished jobs past their time: how many, and whether there are more.
  local list = P .. ':old:' .. kept
  local gone, has_more = retain_loaded(kept, keep_ms)
  while gone < STEP do
    local entry = call('LINDEX', list, 0)
    if not entry or tonumber(sub(entry, 1, 15)) + keep_ms > now then return gone, has_more end
    call('LPOP', list)
    local ids = {}
    for id in string.gmatch(sub(entry, 17), '%d+') do ids[#ids + 1] = id end
    gone = gone + remove_old(ids, kept, keep_ms)
  end
  return gone, true
end

local function tidy(hours_kept)
  local since = now - (call('HGET', P .. ':turns', '\ntidied') or 0)
  if since >= 0 and since < TIDY_EVERY_MS then return end
  call('HSET', P .. ':turns', '\ntidied', NOW)
  local first = math.floor(now / 3600000) - hours_kept
  for _, hour in ipairs(call('ZRANGEBYSCORE', P .. ':hours', '-inf', '(' .. first)) do
    call('UNLINK', P .. ':w:' .. hour)
    call('ZREM', P .. ':hours', hour)
  end
  local entries = call('HGETALL', ENTRIES)
  for i = 1, #entries, 2 do
    local till = string.match(entries[i + 1], '^(%d+)\n')
    if till and tonumber(till) <= now then forget_entry(entries[i]) end
  end
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
