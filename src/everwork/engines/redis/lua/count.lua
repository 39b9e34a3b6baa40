-- Purpose: how many jobs are in which state.
-- Inputs: now. Returns: flat pairs: state, queue and tenant in one text; the number.
return redis.call('HGETALL', KEYS[1] .. ':n')
