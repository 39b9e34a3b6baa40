-- Purpose: how many jobs are in which state.
-- Inputs: now. Returns: state, queue and tenant in one text, then the number, flat.
return redis.call('HGETALL', KEYS[1] .. ':n')
