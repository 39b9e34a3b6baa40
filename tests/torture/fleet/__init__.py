"""The fleet: servers on one store, clients of every kind, and managers; all of them are killed, and so is the store."""
