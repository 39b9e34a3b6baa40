-- Version 6. A lease that is extended while its job is locked is held until the promised instant. The functions do
-- that; they are replaced whenever the schema version rises.
COMMENT ON TABLE {schema}.registry IS
  'Entries of any kind. Kind #lease, name "<key> <attempt>": a lease that holds until until_ms, whatever its job says.';
