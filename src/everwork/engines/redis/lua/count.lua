-- Purpose: count jobs by state.
-- Inputs: now. Returns: flat pairs: state, queue and tenant in one string; the count.
return redis.call('HGETALL', KEYS[1] .. ':n')
