-- Purpose: count jobs by state.
-- Inputs: now. Returns: flat pairs: a string made of state, queue and tenant; the count.
return redis.call('HGETALL', KEYS[1] .. ':n')
