"""What only the Redis engine can get wrong: servers, scripts, connections, memory, streams."""
